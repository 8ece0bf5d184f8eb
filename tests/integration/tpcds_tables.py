"""TPC-DS: its 24 tables, and a few hundred rows from a seed.

The data is not TPC-DS's own: values are drawn from small pools, around what the queries ask for, so that
joins find partners and most queries have rows to show. Dates are four days of every month from 1998 to 2002.
"""

import random
from datetime import date

_ADDRESS = (
    "{0}street_number STRING, {0}street_name STRING, {0}street_type STRING, {0}suite_number STRING,"
    " {0}city STRING, {0}county STRING, {0}state STRING, {0}zip STRING, {0}country STRING,"
    " {0}gmt_offset DECIMAL(5,2)"
)
_MONEY = "DECIMAL(7,2)"

DDL = {
    "call_center": "cc_call_center_sk INT, cc_call_center_id STRING, cc_name STRING, cc_class STRING,"
    " cc_employees INT, cc_manager STRING, cc_market_manager STRING, " + _ADDRESS.format("cc_"),
    "catalog_page": "cp_catalog_page_sk INT, cp_catalog_page_id STRING, cp_catalog_number INT",
    "catalog_returns": "cr_returned_date_sk INT, cr_returned_time_sk INT, cr_item_sk INT,"
    " cr_refunded_customer_sk INT, cr_refunded_addr_sk INT, cr_returning_customer_sk INT,"
    " cr_returning_addr_sk INT, cr_call_center_sk INT, cr_catalog_page_sk INT, cr_ship_mode_sk INT,"
    f" cr_warehouse_sk INT, cr_reason_sk INT, cr_order_number INT, cr_return_quantity INT,"
    f" cr_return_amount {_MONEY}, cr_return_amt_inc_tax {_MONEY}, cr_refunded_cash {_MONEY},"
    f" cr_reversed_charge {_MONEY}, cr_store_credit {_MONEY}, cr_net_loss {_MONEY}",
    "catalog_sales": "cs_sold_date_sk INT, cs_sold_time_sk INT, cs_ship_date_sk INT, cs_bill_customer_sk INT,"
    " cs_bill_cdemo_sk INT, cs_bill_hdemo_sk INT, cs_bill_addr_sk INT, cs_ship_customer_sk INT,"
    " cs_ship_addr_sk INT, cs_call_center_sk INT, cs_catalog_page_sk INT, cs_ship_mode_sk INT,"
    " cs_warehouse_sk INT, cs_item_sk INT, cs_promo_sk INT, cs_order_number INT, cs_quantity INT,"
    f" cs_wholesale_cost {_MONEY}, cs_list_price {_MONEY}, cs_sales_price {_MONEY},"
    f" cs_ext_discount_amt {_MONEY}, cs_ext_sales_price {_MONEY}, cs_ext_wholesale_cost {_MONEY},"
    f" cs_ext_list_price {_MONEY}, cs_coupon_amt {_MONEY}, cs_ext_ship_cost {_MONEY}, cs_net_paid {_MONEY},"
    f" cs_net_paid_inc_tax {_MONEY}, cs_net_profit {_MONEY}",
    "customer": "c_customer_sk INT, c_customer_id STRING, c_current_cdemo_sk INT, c_current_hdemo_sk INT,"
    " c_current_addr_sk INT, c_first_shipto_date_sk INT, c_first_sales_date_sk INT, c_salutation STRING,"
    " c_first_name STRING, c_last_name STRING, c_preferred_cust_flag STRING, c_birth_day INT,"
    " c_birth_month INT, c_birth_year INT, c_birth_country STRING, c_login STRING, c_email_address STRING,"
    " c_last_review_date STRING",
    "customer_address": "ca_address_sk INT, ca_address_id STRING, "
    + _ADDRESS.format("ca_")
    + ", ca_location_type STRING",
    "customer_demographics": "cd_demo_sk INT, cd_gender STRING, cd_marital_status STRING,"
    " cd_education_status STRING, cd_purchase_estimate INT, cd_credit_rating STRING, cd_dep_count INT,"
    " cd_dep_employed_count INT, cd_dep_college_count INT",
    "date_dim": "d_date_sk INT, d_date_id STRING, d_date DATE, d_month_seq INT, d_week_seq INT,"
    " d_quarter_seq INT, d_year INT, d_dow INT, d_moy INT, d_dom INT, d_qoy INT, d_day_name STRING,"
    " d_quarter_name STRING",
    "household_demographics": "hd_demo_sk INT, hd_income_band_sk INT, hd_buy_potential STRING,"
    " hd_dep_count INT, hd_vehicle_count INT",
    "income_band": "ib_income_band_sk INT, ib_lower_bound INT, ib_upper_bound INT",
    "inventory": "inv_date_sk INT, inv_item_sk INT, inv_warehouse_sk INT, inv_quantity_on_hand INT",
    "item": "i_item_sk INT, i_item_id STRING, i_item_desc STRING, i_current_price DECIMAL(7,2),"
    " i_wholesale_cost DECIMAL(7,2), i_brand_id INT, i_brand STRING, i_class_id INT, i_class STRING,"
    " i_category_id INT, i_category STRING, i_manufact_id INT, i_manufact STRING, i_size STRING,"
    " i_color STRING, i_units STRING, i_manager_id INT, i_product_name STRING",
    "promotion": "p_promo_sk INT, p_promo_id STRING, p_channel_dmail STRING, p_channel_email STRING,"
    " p_channel_tv STRING, p_channel_event STRING",
    "reason": "r_reason_sk INT, r_reason_id STRING, r_reason_desc STRING",
    "ship_mode": "sm_ship_mode_sk INT, sm_ship_mode_id STRING, sm_type STRING, sm_code STRING,"
    " sm_carrier STRING",
    "store": "s_store_sk INT, s_store_id STRING, s_store_name STRING, s_number_employees INT,"
    " s_floor_space INT, s_hours STRING, s_manager STRING, s_market_id INT, s_company_id INT,"
    " s_company_name STRING, " + _ADDRESS.format("s_"),
    "store_returns": "sr_returned_date_sk INT, sr_return_time_sk INT, sr_item_sk INT, sr_customer_sk INT,"
    " sr_cdemo_sk INT, sr_hdemo_sk INT, sr_addr_sk INT, sr_store_sk INT, sr_reason_sk INT,"
    f" sr_ticket_number INT, sr_return_quantity INT, sr_return_amt {_MONEY}, sr_fee {_MONEY},"
    f" sr_refunded_cash {_MONEY}, sr_reversed_charge {_MONEY}, sr_store_credit {_MONEY},"
    f" sr_net_loss {_MONEY}",
    "store_sales": "ss_sold_date_sk INT, ss_sold_time_sk INT, ss_item_sk INT, ss_customer_sk INT,"
    " ss_cdemo_sk INT, ss_hdemo_sk INT, ss_addr_sk INT, ss_store_sk INT, ss_promo_sk INT,"
    f" ss_ticket_number INT, ss_quantity INT, ss_wholesale_cost {_MONEY}, ss_list_price {_MONEY},"
    f" ss_sales_price {_MONEY}, ss_ext_discount_amt {_MONEY}, ss_ext_sales_price {_MONEY},"
    f" ss_ext_wholesale_cost {_MONEY}, ss_ext_list_price {_MONEY}, ss_ext_tax {_MONEY},"
    f" ss_coupon_amt {_MONEY}, ss_net_paid {_MONEY}, ss_net_paid_inc_tax {_MONEY}, ss_net_profit {_MONEY}",
    "time_dim": "t_time_sk INT, t_time INT, t_hour INT, t_minute INT, t_am_pm STRING, t_meal_time STRING",
    "warehouse": "w_warehouse_sk INT, w_warehouse_id STRING, w_warehouse_name STRING,"
    " w_warehouse_sq_ft INT, " + _ADDRESS.format("w_"),
    "web_page": "wp_web_page_sk INT, wp_web_page_id STRING, wp_char_count INT",
    "web_returns": "wr_returned_date_sk INT, wr_returned_time_sk INT, wr_item_sk INT,"
    " wr_refunded_customer_sk INT, wr_refunded_cdemo_sk INT, wr_refunded_addr_sk INT,"
    " wr_returning_customer_sk INT, wr_returning_cdemo_sk INT, wr_returning_addr_sk INT, wr_web_page_sk INT,"
    f" wr_reason_sk INT, wr_order_number INT, wr_return_quantity INT, wr_return_amt {_MONEY},"
    f" wr_fee {_MONEY}, wr_refunded_cash {_MONEY}, wr_net_loss {_MONEY}",
    "web_sales": "ws_sold_date_sk INT, ws_sold_time_sk INT, ws_ship_date_sk INT, ws_item_sk INT,"
    " ws_bill_customer_sk INT, ws_bill_addr_sk INT, ws_ship_customer_sk INT, ws_ship_hdemo_sk INT,"
    " ws_ship_addr_sk INT, ws_web_page_sk INT, ws_web_site_sk INT, ws_ship_mode_sk INT, ws_warehouse_sk INT,"
    f" ws_promo_sk INT, ws_order_number INT, ws_quantity INT, ws_wholesale_cost {_MONEY},"
    f" ws_list_price {_MONEY}, ws_sales_price {_MONEY}, ws_ext_discount_amt {_MONEY},"
    f" ws_ext_sales_price {_MONEY}, ws_ext_wholesale_cost {_MONEY}, ws_ext_list_price {_MONEY},"
    f" ws_ext_ship_cost {_MONEY}, ws_net_paid {_MONEY}, ws_net_profit {_MONEY}",
    "web_site": "web_site_sk INT, web_site_id STRING, web_name STRING, web_company_name STRING",
}

COUNTS = {
    "call_center": 3,
    "catalog_page": 4,
    "catalog_returns": 90,
    "catalog_sales": 300,
    "customer": 24,
    "customer_address": 12,
    "customer_demographics": 12,
    "household_demographics": 8,
    "income_band": 4,
    "inventory": 220,
    "item": 16,
    "promotion": 4,
    "reason": 3,
    "ship_mode": 4,
    "store": 4,
    "store_returns": 110,
    "store_sales": 420,
    "time_dim": 24,
    "warehouse": 3,
    "web_page": 3,
    "web_returns": 80,
    "web_sales": 300,
    "web_site": 3,
}

KEYS = {
    "date": "date_dim",
    "time": "time_dim",
    "item": "item",
    "customer": "customer",
    "cdemo": "customer_demographics",
    "hdemo": "household_demographics",
    "addr": "customer_address",
    "store": "store",
    "promo": "promotion",
    "reason": "reason",
    "warehouse": "warehouse",
    "mode": "ship_mode",
    "site": "web_site",
    "page": "web_page",
    "center": "call_center",
    "band": "income_band",
}
"""The last word before `_sk` of a column that refers to a table, and that table."""

POOLS = {
    "category": ["Books", "Electronics", "Home", "Women", "Music", "Sports"],
    "class": ["computers", "fiction", "personal", "accent", "dresses"],
    "brand": ["amalg", "edu pack", "exporti", "scholar"],
    "color": ["pale", "chiffon", "slate", "powder"],
    "size": ["small", "medium", "large", "extra large"],
    "units": ["Each", "Ounce", "Pound", "Oz"],
    "state": ["TN", "GA", "CA", "TX"],
    "county": ["Williamson County", "Rush County", "Dona Ana County"],
    "city": ["Midway", "Fairview", "Oak Grove"],
    "country": ["United States"],
    "zip": ["24128-1234", "85669", "35709", "47305"],
    "gender": ["M", "F"],
    "marital_status": ["S", "M", "D", "W"],
    "education_status": ["College", "Advanced Degree", "Secondary", "Unknown"],
    "credit_rating": ["Low Risk", "Good", "High Risk"],
    "buy_potential": [">10000", "unknown", "0-500", "1001-5000"],
    "preferred_cust_flag": ["Y", "N"],
    "salutation": ["Mr.", "Dr."],
    "birth_country": ["CHILE", "GUAM", "TOGO"],
    "am_pm": ["AM", "PM"],
    "meal_time": ["breakfast", "dinner"],
    "store_name": ["ese", "ought", "able"],
    "company_name": ["pri", "able", "Unknown"],
    "carrier": ["DHL", "BARIAN", "UPS"],
    "type": ["EXPRESS", "OVERNIGHT", "REGULAR"],
    "reason_desc": ["reason 28", "reason 35", "Did not fit"],
    "location_type": ["condo", "single family"],
    "hours": ["8AM-8PM", "8AM-4PM"],
}

SMALL = {
    "hd_dep_count": 4,
    "hd_vehicle_count": 4,
    "cd_dep_count": 3,
    "cd_dep_employed_count": 3,
    "cd_dep_college_count": 3,
    "i_manufact_id": 3,
    "i_manager_id": 3,
    "i_brand_id": 4,
    "i_class_id": 3,
    "i_category_id": 3,
    "s_market_id": 3,
    "s_company_id": 2,
    "c_birth_month": 12,
    "c_birth_day": 28,
    "t_hour": 24,
    "t_minute": 60,
    "s_number_employees": 300,
    "cd_purchase_estimate": 3,
}


def rows(seed: int = 1) -> dict[str, str]:
    """Rows as SQL, by table."""
    draw = random.Random(seed)
    days = _days()
    counts = {**COUNTS, "date_dim": len(days)}
    data = {"date_dim": ",\n".join(_day(number, day) for number, day in enumerate(days, 1))}
    for table, ddl in DDL.items():
        if table not in data:
            columns = _columns(ddl)
            made = [_row(draw, columns, number, counts) for number in range(1, counts[table] + 1)]
            data[table] = ",\n".join(made)
    return data


def _columns(ddl: str) -> list[tuple[str, str]]:
    words = [part.split(" ", 1) for part in ddl.replace(", ", "\n").replace("(5,2)", "").split("\n")]
    return [(name, kind) for name, kind in words]


def _days() -> list[date]:
    return [
        date(year, month, dom)
        for year in range(1998, 2003)
        for month in range(1, 13)
        for dom in (2, 9, 16, 27)
    ]


def _day(number: int, day: date) -> str:
    months, quarter = (day.year - 1900) * 12 + day.month - 1, (day.month + 2) // 3
    weeks = (day - date(1900, 1, 1)).days // 7
    name = f"{day:%A}"
    return (
        f"({number}, 'D{number}', DATE '{day}', {months}, {weeks}, {months // 3}, {day.year},"
        f" {day.weekday()}, {day.month}, {day.day}, {quarter}, '{name}', '{day.year}Q{quarter}')"
    )


def _row(draw: random.Random, columns: list[tuple[str, str]], number: int, counts: dict[str, int]) -> str:
    order = number // 2  # of a sale or of a return: some share one
    values = []
    for place, (name, kind) in enumerate(columns):
        values.append(_value(draw, name, kind, number, counts, first=place == 0, order=order))
    return f"({', '.join(values)})"


def _value(
    draw: random.Random, name: str, kind: str, number: int, counts: dict[str, int], *, first: bool, order: int
) -> str:
    word = name.partition("_")[2]
    if first and name.endswith("_sk") and not name.endswith(("date_sk", "inv_date_sk")):
        return str(number)
    if name.endswith("_sk"):
        table = KEYS[name.removesuffix("_sk").rpartition("_")[2]]
        if "page" in name and name.startswith("c"):
            table = "catalog_page"
        return "NULL" if draw.random() < 0.03 else str(draw.randint(1, counts[table]))
    if name.endswith(("ticket_number", "order_number")):
        return str(order)
    if kind.startswith("DECIMAL"):
        return "-5" if "gmt" in name else f"{draw.randint(100, 20000) / 100:.2f}"
    if kind == "INT":
        most = SMALL.get(name)
        return str(draw.randint(0, most - 1) if most else draw.randint(1, 100))
    if word in POOLS:
        return f"'{draw.choice(POOLS[word])}'"
    pool = POOLS.get(word.rpartition("_")[2])
    if pool and not word.startswith(("street", "suite")):
        return f"'{draw.choice(pool)}'"
    if name.startswith("p_channel"):
        return f"'{draw.choice('YN')}'"
    if word.endswith("id"):
        return f"'{name[:2].upper()}{number:04}'"
    return f"'{word} {draw.randint(1, 6)}'"
