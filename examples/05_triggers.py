"""When arcs and views run: one arc for many tables, fixed times, a pace. It declares, and runs nothing."""

# region: template
import tidemill as tm

shop = tm.Pipeline("shop", home="shop-home")
shop.dataset("raw_orders", "id BIGINT, amount DECIMAL(10,2)")
shop.dataset("raw_visits", "id BIGINT, page STRING")


@shop.arc(reads="raw_*", writes="clean_{name}")
def clean(df):
    return df.where("id IS NOT NULL")


# endregion


# region: cron
weekdays = tm.Pace(cron="30 6 * * mon-fri", zone="Europe/Madrid")


@shop.arc(reads="clean_orders", writes="daily_orders", pace=weekdays)
def daily(df):
    return df


shop.view("yesterday", "SELECT count(*) AS n FROM clean_orders", group="nightly", pace=tm.Pace(cron="@daily"))
# endregion


# region: pace
@shop.arc(reads="raw_orders", writes="hourly_orders", pace=tm.Pace(cadence="PT1H"))
def hourly(df):
    return df


quiet = tm.Pace(debounce=2, max_wait=30)
shop.view("busy", "SELECT count(*) AS n FROM clean_visits", group="live", pace=quiet)
# endregion

with shop:
    print(*shop.all_arcs(), sep="\n")
