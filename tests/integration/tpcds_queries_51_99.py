"""Queries of TPC-DS in Spark SQL, the second half; see `tpcds_queries_1_50`."""

# ruff: noqa: E501  # queries have the width they have

QUERIES = {
    "q51": """
        WITH web_v1 AS (
            SELECT ws_item_sk AS item_sk, d_date, sum(sum(ws_sales_price)) OVER (PARTITION BY ws_item_sk ORDER BY d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS cume_sales
            FROM web_sales, date_dim WHERE ws_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1200 AND 1211 AND ws_item_sk IS NOT NULL GROUP BY ws_item_sk, d_date),
        store_v1 AS (
            SELECT ss_item_sk AS item_sk, d_date, sum(sum(ss_sales_price)) OVER (PARTITION BY ss_item_sk ORDER BY d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS cume_sales
            FROM store_sales, date_dim WHERE ss_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1200 AND 1211 AND ss_item_sk IS NOT NULL GROUP BY ss_item_sk, d_date)
        SELECT * FROM (
            SELECT item_sk, d_date, web_sales, store_sales,
                   max(web_sales) OVER (PARTITION BY item_sk ORDER BY d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS web_cumulative,
                   max(store_sales) OVER (PARTITION BY item_sk ORDER BY d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS store_cumulative
            FROM (SELECT CASE WHEN web.item_sk IS NOT NULL THEN web.item_sk ELSE store.item_sk END AS item_sk,
                         CASE WHEN web.d_date IS NOT NULL THEN web.d_date ELSE store.d_date END AS d_date, web.cume_sales AS web_sales, store.cume_sales AS store_sales
                  FROM web_v1 web FULL OUTER JOIN store_v1 store ON (web.item_sk = store.item_sk AND web.d_date = store.d_date)) x) y
        WHERE web_cumulative > store_cumulative
        ORDER BY item_sk, d_date LIMIT 100""",
    "q52": """
        SELECT dt.d_year, item.i_brand_id AS brand_id, item.i_brand AS brand, sum(ss_ext_sales_price) AS ext_price
        FROM date_dim dt, store_sales, item
        WHERE dt.d_date_sk = store_sales.ss_sold_date_sk AND store_sales.ss_item_sk = item.i_item_sk AND item.i_manager_id = 1 AND dt.d_moy = 11 AND dt.d_year = 2000
        GROUP BY dt.d_year, item.i_brand, item.i_brand_id
        ORDER BY dt.d_year, ext_price DESC, brand_id LIMIT 100""",
    "q53": """
        SELECT * FROM (
            SELECT i_manufact_id, sum(ss_sales_price) AS sum_sales, avg(sum(ss_sales_price)) OVER (PARTITION BY i_manufact_id) AS avg_quarterly_sales
            FROM item, store_sales, date_dim, store
            WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND d_month_seq IN (1200, 1201, 1202, 1203, 1204, 1205, 1206)
              AND ((i_category IN ('Books', 'Home', 'Electronics') AND i_class IN ('personal', 'fiction', 'computers')) OR (i_category IN ('Women', 'Music') AND i_class IN ('accent', 'dresses')))
            GROUP BY i_manufact_id, d_qoy) tmp1
        WHERE CASE WHEN avg_quarterly_sales > 0 THEN abs(sum_sales - avg_quarterly_sales) / avg_quarterly_sales ELSE NULL END > 0.01
        ORDER BY avg_quarterly_sales, sum_sales, i_manufact_id LIMIT 100""",
    "q54": """
        WITH my_customers AS (
            SELECT DISTINCT c_customer_sk, c_current_addr_sk
            FROM (SELECT cs_sold_date_sk AS sold_date_sk, cs_bill_customer_sk AS customer_sk, cs_item_sk AS item_sk FROM catalog_sales
                  UNION ALL
                  SELECT ws_sold_date_sk, ws_bill_customer_sk, ws_item_sk FROM web_sales) cs_or_ws_sales, item, date_dim, customer
            WHERE sold_date_sk = d_date_sk AND item_sk = i_item_sk AND i_category = 'Women' AND c_customer_sk = cs_or_ws_sales.customer_sk AND d_moy = 12 AND d_year = 1998),
        my_revenue AS (
            SELECT c_customer_sk, sum(ss_ext_sales_price) AS revenue
            FROM my_customers, store_sales, customer_address, store, date_dim
            WHERE c_current_addr_sk = ca_address_sk AND ca_state = s_state AND ss_sold_date_sk = d_date_sk AND c_customer_sk = ss_customer_sk
              AND d_month_seq BETWEEN (SELECT DISTINCT d_month_seq + 1 FROM date_dim WHERE d_year = 1998 AND d_moy = 12)
                                  AND (SELECT DISTINCT d_month_seq + 24 FROM date_dim WHERE d_year = 1998 AND d_moy = 12)
            GROUP BY c_customer_sk),
        segments AS (SELECT CAST((revenue / 50) AS INT) AS segment FROM my_revenue)
        SELECT segment, count(*) AS num_customers, segment * 50 AS segment_base FROM segments GROUP BY segment ORDER BY segment, num_customers LIMIT 100""",
    "q55": """
        SELECT i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS ext_price
        FROM date_dim, store_sales, item
        WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_manager_id = 2 AND d_moy = 11 AND d_year = 1999
        GROUP BY i_brand, i_brand_id ORDER BY ext_price DESC, i_brand_id LIMIT 100""",
    "q56": """
        WITH ss AS (SELECT i_item_id, sum(ss_ext_sales_price) AS total_sales FROM store_sales, date_dim, customer_address, item
                    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_color IN ('slate', 'pale', 'powder')) AND ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk
                      AND d_year = 2001 AND d_moy = 2 AND ss_addr_sk = ca_address_sk AND ca_gmt_offset = -5 GROUP BY i_item_id),
             ws AS (SELECT i_item_id, sum(ws_ext_sales_price) AS total_sales FROM web_sales, date_dim, customer_address, item
                    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_color IN ('slate', 'pale', 'powder')) AND ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk
                      AND d_year = 2001 AND d_moy = 2 AND ws_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5 GROUP BY i_item_id)
        SELECT i_item_id, sum(total_sales) AS total_sales FROM (SELECT * FROM ss UNION ALL SELECT * FROM ws) tmp1 GROUP BY i_item_id ORDER BY total_sales, i_item_id LIMIT 100""",
    "q57": """
        WITH v1 AS (
            SELECT i_category, i_brand, cc_name, d_year, d_moy, sum(cs_sales_price) AS sum_sales,
                   avg(sum(cs_sales_price)) OVER (PARTITION BY i_category, i_brand, cc_name, d_year) AS avg_monthly_sales,
                   rank() OVER (PARTITION BY i_category, i_brand, cc_name ORDER BY d_year, d_moy) AS rn
            FROM item, catalog_sales, date_dim, call_center
            WHERE cs_item_sk = i_item_sk AND cs_sold_date_sk = d_date_sk AND cc_call_center_sk = cs_call_center_sk AND d_year BETWEEN 1999 AND 2001
            GROUP BY i_category, i_brand, cc_name, d_year, d_moy)
        SELECT v1.i_category, v1.i_brand, v1.cc_name, v1.d_year, v1.d_moy, v1.avg_monthly_sales, v1.sum_sales, v1_lag.sum_sales AS psum
        FROM v1, v1 v1_lag
        WHERE v1.i_category = v1_lag.i_category AND v1.i_brand = v1_lag.i_brand AND v1.cc_name = v1_lag.cc_name AND v1.rn = v1_lag.rn + 1 AND v1.d_year = 2000
        ORDER BY v1.i_category, v1.i_brand, v1.cc_name, v1.d_year, v1.d_moy LIMIT 100""",
    "q58": """
        WITH ss_items AS (
            SELECT i_item_id AS item_id, sum(ss_ext_sales_price) AS ss_item_rev FROM store_sales, item, date_dim
            WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk
              AND d_date IN (SELECT d_date FROM date_dim WHERE d_month_seq = (SELECT d_month_seq FROM date_dim WHERE d_date = DATE '2000-01-02')) GROUP BY i_item_id),
        ws_items AS (
            SELECT i_item_id AS item_id, sum(ws_ext_sales_price) AS ws_item_rev FROM web_sales, item, date_dim
            WHERE ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk
              AND d_date IN (SELECT d_date FROM date_dim WHERE d_month_seq = (SELECT d_month_seq FROM date_dim WHERE d_date = DATE '2000-01-02')) GROUP BY i_item_id)
        SELECT ss_items.item_id, ss_item_rev, ws_item_rev, (ss_item_rev + ws_item_rev) / 2 AS average
        FROM ss_items, ws_items
        WHERE ss_items.item_id = ws_items.item_id AND ss_item_rev BETWEEN 0.1 * ws_item_rev AND 9 * ws_item_rev
        ORDER BY ss_items.item_id, ss_item_rev LIMIT 100""",
    "q59": """
        WITH wss AS (
            SELECT d_week_seq, ss_store_sk, sum(CASE WHEN d_day_name = 'Sunday' THEN ss_sales_price ELSE NULL END) AS sun_sales,
                   sum(CASE WHEN d_day_name = 'Wednesday' THEN ss_sales_price ELSE NULL END) AS wed_sales
            FROM store_sales, date_dim WHERE d_date_sk = ss_sold_date_sk GROUP BY d_week_seq, ss_store_sk)
        SELECT s_store_name1, s_store_id1, d_week_seq1, sun_sales1 / sun_sales2 AS sun, wed_sales1 / wed_sales2 AS wed
        FROM (SELECT s_store_name AS s_store_name1, wss.d_week_seq AS d_week_seq1, s_store_id AS s_store_id1, sun_sales AS sun_sales1, wed_sales AS wed_sales1
              FROM wss, store, date_dim d WHERE d.d_week_seq = wss.d_week_seq AND ss_store_sk = s_store_sk AND d_month_seq BETWEEN 1185 AND 1196) y,
             (SELECT wss.d_week_seq AS d_week_seq2, s_store_id AS s_store_id2, sun_sales AS sun_sales2, wed_sales AS wed_sales2
              FROM wss, store, date_dim d WHERE d.d_week_seq = wss.d_week_seq AND ss_store_sk = s_store_sk AND d_month_seq BETWEEN 1197 AND 1208) x
        WHERE s_store_id1 = s_store_id2 AND d_week_seq1 = d_week_seq2 - 52
        ORDER BY s_store_name1, s_store_id1, d_week_seq1 LIMIT 100""",
    "q60": """
        WITH ss AS (SELECT i_item_id, sum(ss_ext_sales_price) AS total_sales FROM store_sales, date_dim, customer_address, item
                    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_category = 'Music') AND ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk
                      AND d_year = 1998 AND d_moy = 9 AND ss_addr_sk = ca_address_sk AND ca_gmt_offset = -5 GROUP BY i_item_id),
             cs AS (SELECT i_item_id, sum(cs_ext_sales_price) AS total_sales FROM catalog_sales, date_dim, customer_address, item
                    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_category = 'Music') AND cs_item_sk = i_item_sk AND cs_sold_date_sk = d_date_sk
                      AND d_year = 1998 AND d_moy = 9 AND cs_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5 GROUP BY i_item_id)
        SELECT i_item_id, sum(total_sales) AS total_sales FROM (SELECT * FROM ss UNION ALL SELECT * FROM cs) tmp1 GROUP BY i_item_id ORDER BY i_item_id, total_sales LIMIT 100""",
    "q61": """
        SELECT promotions, total, CAST(promotions AS DECIMAL(15,4)) / CAST(total AS DECIMAL(15,4)) * 100 AS share
        FROM (SELECT sum(ss_ext_sales_price) AS promotions FROM store_sales, store, promotion, date_dim, customer, customer_address, item
              WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_promo_sk = p_promo_sk AND ss_customer_sk = c_customer_sk AND ca_address_sk = c_current_addr_sk
                AND ss_item_sk = i_item_sk AND ca_gmt_offset = -5 AND i_category = 'Books' AND (p_channel_dmail = 'Y' OR p_channel_email = 'Y' OR p_channel_tv = 'Y') AND d_year = 1998) promotional_sales,
             (SELECT sum(ss_ext_sales_price) AS total FROM store_sales, store, date_dim, customer, customer_address, item
              WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_customer_sk = c_customer_sk AND ca_address_sk = c_current_addr_sk
                AND ss_item_sk = i_item_sk AND ca_gmt_offset = -5 AND i_category = 'Books' AND d_year = 1998) all_sales
        ORDER BY promotions, total LIMIT 100""",
    "q62": """
        SELECT substr(w_warehouse_name, 1, 20) AS w, sm_type, web_name,
               sum(CASE WHEN (ws_ship_date_sk - ws_sold_date_sk <= 30) THEN 1 ELSE 0 END) AS d30,
               sum(CASE WHEN (ws_ship_date_sk - ws_sold_date_sk > 30) AND (ws_ship_date_sk - ws_sold_date_sk <= 60) THEN 1 ELSE 0 END) AS d60,
               sum(CASE WHEN (ws_ship_date_sk - ws_sold_date_sk > 60) THEN 1 ELSE 0 END) AS more
        FROM web_sales, warehouse, ship_mode, web_site, date_dim
        WHERE d_month_seq BETWEEN 1200 AND 1200 + 11 AND ws_ship_date_sk = d_date_sk AND ws_warehouse_sk = w_warehouse_sk AND ws_ship_mode_sk = sm_ship_mode_sk AND ws_web_site_sk = web_site_sk
        GROUP BY substr(w_warehouse_name, 1, 20), sm_type, web_name ORDER BY w, sm_type, web_name LIMIT 100""",
    "q63": """
        SELECT * FROM (
            SELECT i_manager_id, sum(ss_sales_price) AS sum_sales, avg(sum(ss_sales_price)) OVER (PARTITION BY i_manager_id) AS avg_monthly_sales
            FROM item, store_sales, date_dim, store
            WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND d_month_seq BETWEEN 1200 AND 1211
              AND ((i_category IN ('Books', 'Home') AND i_class IN ('personal', 'fiction')) OR (i_category IN ('Women', 'Music') AND i_class IN ('accent', 'dresses')))
            GROUP BY i_manager_id, d_moy) tmp1
        WHERE CASE WHEN avg_monthly_sales > 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales ELSE NULL END > 0.1
        ORDER BY i_manager_id, avg_monthly_sales, sum_sales LIMIT 100""",
    "q65": """
        SELECT s_store_name, i_item_desc, sc.revenue, i_current_price, i_brand
        FROM store, item,
             (SELECT ss_store_sk, avg(revenue) AS ave FROM (SELECT ss_store_sk, ss_item_sk, sum(ss_sales_price) AS revenue FROM store_sales, date_dim
                                                            WHERE ss_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1176 AND 1187 GROUP BY ss_store_sk, ss_item_sk) sa
              GROUP BY ss_store_sk) sb,
             (SELECT ss_store_sk, ss_item_sk, sum(ss_sales_price) AS revenue FROM store_sales, date_dim
              WHERE ss_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1176 AND 1187 GROUP BY ss_store_sk, ss_item_sk) sc
        WHERE sb.ss_store_sk = sc.ss_store_sk AND sc.revenue <= 0.5 * sb.ave AND s_store_sk = sc.ss_store_sk AND i_item_sk = sc.ss_item_sk
        ORDER BY s_store_name, i_item_desc, sc.revenue LIMIT 100""",
    "q66": """
        SELECT w_warehouse_name, w_city, ship_carriers, year, sum(jan_sales) AS jan_sales, sum(feb_sales) AS feb_sales, sum(jan_net) AS jan_net
        FROM (SELECT w_warehouse_name, w_city, concat('DHL', ',', 'BARIAN') AS ship_carriers, d_year AS year,
                     sum(CASE WHEN d_moy = 1 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS jan_sales,
                     sum(CASE WHEN d_moy = 2 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS feb_sales,
                     sum(CASE WHEN d_moy = 1 THEN ws_net_paid * ws_quantity ELSE 0 END) AS jan_net
              FROM web_sales, warehouse, date_dim, time_dim, ship_mode
              WHERE ws_warehouse_sk = w_warehouse_sk AND ws_sold_date_sk = d_date_sk AND ws_sold_time_sk = t_time_sk AND ws_ship_mode_sk = sm_ship_mode_sk AND d_year = 2001
                AND sm_carrier IN ('DHL', 'BARIAN') GROUP BY w_warehouse_name, w_city, d_year
              UNION ALL
              SELECT w_warehouse_name, w_city, concat('DHL', ',', 'BARIAN'), d_year,
                     sum(CASE WHEN d_moy = 1 THEN cs_sales_price * cs_quantity ELSE 0 END), sum(CASE WHEN d_moy = 2 THEN cs_sales_price * cs_quantity ELSE 0 END),
                     sum(CASE WHEN d_moy = 1 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END)
              FROM catalog_sales, warehouse, date_dim, time_dim, ship_mode
              WHERE cs_warehouse_sk = w_warehouse_sk AND cs_sold_date_sk = d_date_sk AND cs_sold_time_sk = t_time_sk AND cs_ship_mode_sk = sm_ship_mode_sk AND d_year = 2001
                AND sm_carrier IN ('DHL', 'BARIAN') GROUP BY w_warehouse_name, w_city, d_year) x
        GROUP BY w_warehouse_name, w_city, ship_carriers, year ORDER BY w_warehouse_name, w_city LIMIT 100""",
    "q67": """
        SELECT * FROM (
            SELECT i_category, i_class, i_brand, s_store_id, sumsales, rank() OVER (PARTITION BY i_category ORDER BY sumsales DESC) AS rk
            FROM (SELECT i_category, i_class, i_brand, s_store_id, sum(coalesce(ss_sales_price * ss_quantity, 0)) AS sumsales
                  FROM store_sales, date_dim, store, item
                  WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11
                  GROUP BY ROLLUP (i_category, i_class, i_brand, s_store_id)) dw1) dw2
        WHERE rk <= 10
        ORDER BY i_category, i_class, i_brand, s_store_id, sumsales, rk LIMIT 1000""",
    "q68": """
        SELECT c_last_name, c_first_name, ca_city, bought_city, ss_ticket_number, extended_price, list_price
        FROM (SELECT ss_ticket_number, ss_customer_sk, ca_city AS bought_city, sum(ss_ext_sales_price) AS extended_price, sum(ss_ext_list_price) AS list_price
              FROM store_sales, date_dim, store, household_demographics, customer_address
              WHERE store_sales.ss_sold_date_sk = date_dim.d_date_sk AND store_sales.ss_store_sk = store.s_store_sk AND store_sales.ss_hdemo_sk = household_demographics.hd_demo_sk
                AND store_sales.ss_addr_sk = customer_address.ca_address_sk AND date_dim.d_dom BETWEEN 1 AND 2
                AND (household_demographics.hd_dep_count = 2 OR household_demographics.hd_vehicle_count = 3) AND date_dim.d_year IN (1999, 2000, 2001)
              GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, ca_city) dn, customer, customer_address current_addr
        WHERE ss_customer_sk = c_customer_sk AND customer.c_current_addr_sk = current_addr.ca_address_sk AND current_addr.ca_city <> bought_city
        ORDER BY c_last_name, ss_ticket_number LIMIT 1000""",
    "q69": """
        SELECT cd_gender, cd_marital_status, cd_education_status, count(*) AS cnt1, cd_purchase_estimate, cd_credit_rating
        FROM customer c, customer_address ca, customer_demographics
        WHERE c.c_current_addr_sk = ca.ca_address_sk AND ca_state IN ('TN', 'GA', 'CA') AND cd_demo_sk = c.c_current_cdemo_sk
          AND EXISTS (SELECT * FROM store_sales, date_dim WHERE c.c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy BETWEEN 1 AND 12)
          AND (NOT EXISTS (SELECT * FROM web_sales, date_dim WHERE c.c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy BETWEEN 4 AND 6)
               AND NOT EXISTS (SELECT * FROM catalog_sales, date_dim WHERE c.c_customer_sk = cs_ship_customer_sk AND cs_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy BETWEEN 4 AND 6))
        GROUP BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating
        ORDER BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating LIMIT 100""",
    "q70": """
        SELECT sum(ss_net_profit) AS total_sum, s_state, s_county, grouping(s_state) + grouping(s_county) AS lochierarchy,
               rank() OVER (PARTITION BY grouping(s_state) + grouping(s_county), CASE WHEN grouping(s_county) = 0 THEN s_state END ORDER BY sum(ss_net_profit) DESC) AS rank_within_parent
        FROM store_sales, date_dim d1, store
        WHERE d1.d_month_seq BETWEEN 1200 AND 1200 + 11 AND d1.d_date_sk = ss_sold_date_sk AND s_store_sk = ss_store_sk
          AND s_state IN (SELECT s_state FROM (SELECT s_state AS s_state, rank() OVER (PARTITION BY s_state ORDER BY sum(ss_net_profit) DESC) AS ranking
                                               FROM store_sales, store, date_dim WHERE d_month_seq BETWEEN 1200 AND 1200 + 11 AND d_date_sk = ss_sold_date_sk AND s_store_sk = ss_store_sk
                                               GROUP BY s_state) tmp1 WHERE ranking <= 5)
        GROUP BY ROLLUP (s_state, s_county)
        ORDER BY lochierarchy DESC, CASE WHEN lochierarchy = 0 THEN s_state END, rank_within_parent LIMIT 100""",
    "q71": """
        SELECT i_brand_id AS brand_id, i_brand AS brand, t_hour, t_minute, sum(ext_price) AS ext_price
        FROM item,
             (SELECT ws_ext_sales_price AS ext_price, ws_sold_date_sk AS sold_date_sk, ws_item_sk AS sold_item_sk, ws_sold_time_sk AS time_sk FROM web_sales, date_dim
              WHERE d_date_sk = ws_sold_date_sk AND d_moy = 11 AND d_year = 1999
              UNION ALL
              SELECT cs_ext_sales_price, cs_sold_date_sk, cs_item_sk, cs_sold_time_sk FROM catalog_sales, date_dim WHERE d_date_sk = cs_sold_date_sk AND d_moy = 11 AND d_year = 1999
              UNION ALL
              SELECT ss_ext_sales_price, ss_sold_date_sk, ss_item_sk, ss_sold_time_sk FROM store_sales, date_dim WHERE d_date_sk = ss_sold_date_sk AND d_moy = 11 AND d_year = 1999) tmp,
             time_dim
        WHERE sold_item_sk = i_item_sk AND i_manager_id = 1 AND time_sk = t_time_sk AND (t_meal_time = 'breakfast' OR t_meal_time = 'dinner')
        GROUP BY i_brand, i_brand_id, t_hour, t_minute ORDER BY ext_price DESC, i_brand_id, t_hour, t_minute""",
    "q72": """
        SELECT i_item_desc, w_warehouse_name, d1.d_week_seq, count(CASE WHEN p_promo_sk IS NULL THEN 1 END) AS no_promo,
               count(CASE WHEN p_promo_sk IS NOT NULL THEN 1 END) AS promo, count(*) AS total_cnt
        FROM catalog_sales JOIN inventory ON (cs_item_sk = inv_item_sk) JOIN warehouse ON (w_warehouse_sk = inv_warehouse_sk) JOIN item ON (i_item_sk = cs_item_sk)
             JOIN customer_demographics ON (cs_bill_cdemo_sk = cd_demo_sk) JOIN household_demographics ON (cs_bill_hdemo_sk = hd_demo_sk)
             JOIN date_dim d1 ON (cs_sold_date_sk = d1.d_date_sk) JOIN date_dim d2 ON (inv_date_sk = d2.d_date_sk) JOIN date_dim d3 ON (cs_ship_date_sk = d3.d_date_sk)
             LEFT OUTER JOIN promotion ON (cs_promo_sk = p_promo_sk) LEFT OUTER JOIN catalog_returns ON (cr_item_sk = cs_item_sk AND cr_order_number = cs_order_number)
        WHERE d1.d_year = d2.d_year AND inv_quantity_on_hand < cs_quantity AND d3.d_date > d1.d_date + INTERVAL 5 DAYS AND hd_buy_potential = '>10000' AND d1.d_year = 1999 AND cd_marital_status IN ('D', 'M')
        GROUP BY i_item_desc, w_warehouse_name, d1.d_week_seq
        ORDER BY total_cnt DESC, i_item_desc, w_warehouse_name, d1.d_week_seq LIMIT 1000""",
    "q73": """
        SELECT c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ss_ticket_number, cnt
        FROM (SELECT ss_ticket_number, ss_customer_sk, count(*) AS cnt FROM store_sales, date_dim, store, household_demographics
              WHERE store_sales.ss_sold_date_sk = date_dim.d_date_sk AND store_sales.ss_store_sk = store.s_store_sk AND store_sales.ss_hdemo_sk = household_demographics.hd_demo_sk
                AND date_dim.d_dom BETWEEN 1 AND 9 AND (household_demographics.hd_buy_potential = '>10000' OR household_demographics.hd_buy_potential = '0-500')
                AND household_demographics.hd_vehicle_count > 0 AND date_dim.d_year IN (1999, 2000, 2001) AND store.s_county IN ('Williamson County', 'Rush County', 'Dona Ana County')
              GROUP BY ss_ticket_number, ss_customer_sk) dj, customer
        WHERE ss_customer_sk = c_customer_sk AND cnt BETWEEN 1 AND 5
        ORDER BY cnt DESC, c_last_name ASC""",
    "q74": """
        WITH year_total AS (
            SELECT c_customer_id AS customer_id, c_first_name AS first_name, d_year AS year, sum(ss_net_paid) AS total, 's' AS sale_type
            FROM customer, store_sales, date_dim WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year IN (2000, 2001) GROUP BY c_customer_id, c_first_name, d_year
            UNION ALL
            SELECT c_customer_id, c_first_name, d_year, sum(ws_net_paid), 'w'
            FROM customer, web_sales, date_dim WHERE c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year IN (2000, 2001) GROUP BY c_customer_id, c_first_name, d_year)
        SELECT s2.customer_id, s2.first_name
        FROM year_total s1, year_total s2, year_total w1, year_total w2
        WHERE s2.customer_id = s1.customer_id AND s1.customer_id = w2.customer_id AND s1.customer_id = w1.customer_id AND s1.sale_type = 's' AND w1.sale_type = 'w' AND s2.sale_type = 's'
          AND w2.sale_type = 'w' AND s1.year = 2000 AND s2.year = 2001 AND w1.year = 2000 AND w2.year = 2001 AND s1.total > 0 AND w1.total > 0
          AND CASE WHEN w1.total > 0 THEN w2.total / w1.total ELSE NULL END > CASE WHEN s1.total > 0 THEN s2.total / s1.total ELSE NULL END
        ORDER BY 2, 1 LIMIT 100""",
    "q75": """
        WITH all_sales AS (
            SELECT d_year, i_brand_id, i_class_id, sum(sales_cnt) AS sales_cnt, sum(sales_amt) AS sales_amt
            FROM (SELECT d_year, i_brand_id, i_class_id, cs_quantity - coalesce(cr_return_quantity, 0) AS sales_cnt, cs_ext_sales_price - coalesce(cr_return_amount, 0.0) AS sales_amt
                  FROM catalog_sales JOIN item ON i_item_sk = cs_item_sk JOIN date_dim ON d_date_sk = cs_sold_date_sk
                       LEFT JOIN catalog_returns ON (cs_order_number = cr_order_number AND cs_item_sk = cr_item_sk) WHERE i_category = 'Books'
                  UNION
                  SELECT d_year, i_brand_id, i_class_id, ws_quantity - coalesce(wr_return_quantity, 0), ws_ext_sales_price - coalesce(wr_return_amt, 0.0)
                  FROM web_sales JOIN item ON i_item_sk = ws_item_sk JOIN date_dim ON d_date_sk = ws_sold_date_sk
                       LEFT JOIN web_returns ON (ws_order_number = wr_order_number AND ws_item_sk = wr_item_sk) WHERE i_category = 'Books') sales_detail
            GROUP BY d_year, i_brand_id, i_class_id)
        SELECT prev_yr.d_year AS prev_year, curr_yr.d_year AS year, curr_yr.i_brand_id, curr_yr.i_class_id, prev_yr.sales_cnt AS prev_yr_cnt, curr_yr.sales_cnt AS curr_yr_cnt
        FROM all_sales curr_yr, all_sales prev_yr
        WHERE curr_yr.i_brand_id = prev_yr.i_brand_id AND curr_yr.i_class_id = prev_yr.i_class_id AND curr_yr.d_year = 2002 AND prev_yr.d_year = 2002 - 1 AND prev_yr.sales_cnt <> 0
          AND CAST(curr_yr.sales_cnt AS DECIMAL(17,2)) / CAST(prev_yr.sales_cnt AS DECIMAL(17,2)) < 9.9
        ORDER BY prev_yr_cnt, curr_yr_cnt, 3, 4 LIMIT 100""",
    "q76": """
        SELECT channel, col_name, d_year, d_qoy, i_category, count(*) AS sales_cnt, sum(ext_sales_price) AS sales_amt
        FROM (SELECT 'store' AS channel, 'ss_store_sk' AS col_name, d_year, d_qoy, i_category, ss_ext_sales_price AS ext_sales_price FROM store_sales, item, date_dim
              WHERE ss_store_sk IS NULL AND ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk
              UNION ALL
              SELECT 'web', 'ws_ship_customer_sk', d_year, d_qoy, i_category, ws_ext_sales_price FROM web_sales, item, date_dim
              WHERE ws_ship_customer_sk IS NULL AND ws_sold_date_sk = d_date_sk AND ws_item_sk = i_item_sk
              UNION ALL
              SELECT 'catalog', 'cs_ship_addr_sk', d_year, d_qoy, i_category, cs_ext_sales_price FROM catalog_sales, item, date_dim
              WHERE cs_ship_addr_sk IS NULL AND cs_sold_date_sk = d_date_sk AND cs_item_sk = i_item_sk) foo
        GROUP BY channel, col_name, d_year, d_qoy, i_category ORDER BY channel, col_name, d_year, d_qoy, i_category LIMIT 100""",
    "q77": """
        WITH ss AS (SELECT s_store_sk, sum(ss_ext_sales_price) AS sales, sum(ss_net_profit) AS profit FROM store_sales, date_dim, store
                    WHERE ss_sold_date_sk = d_date_sk AND d_year = 2000 AND ss_store_sk = s_store_sk GROUP BY s_store_sk),
             sr AS (SELECT s_store_sk, sum(sr_return_amt) AS returns_amt, sum(sr_net_loss) AS profit_loss FROM store_returns, date_dim, store
                    WHERE sr_returned_date_sk = d_date_sk AND d_year = 2000 AND sr_store_sk = s_store_sk GROUP BY s_store_sk),
             cs AS (SELECT cs_call_center_sk, sum(cs_ext_sales_price) AS sales, sum(cs_net_profit) AS profit FROM catalog_sales, date_dim
                    WHERE cs_sold_date_sk = d_date_sk AND d_year = 2000 GROUP BY cs_call_center_sk),
             cr AS (SELECT sum(cr_return_amount) AS returns_amt, sum(cr_net_loss) AS profit_loss FROM catalog_returns, date_dim WHERE cr_returned_date_sk = d_date_sk AND d_year = 2000)
        SELECT channel, id, sum(sales) AS sales, sum(returns_amt) AS returns_amt, sum(profit) AS profit
        FROM (SELECT 'store channel' AS channel, ss.s_store_sk AS id, sales, coalesce(returns_amt, 0) AS returns_amt, (profit - coalesce(profit_loss, 0)) AS profit
              FROM ss LEFT JOIN sr ON ss.s_store_sk = sr.s_store_sk
              UNION ALL
              SELECT 'catalog channel', cs_call_center_sk, sales, returns_amt, (profit - profit_loss) FROM cs, cr) x
        GROUP BY ROLLUP (channel, id) ORDER BY channel, id LIMIT 100""",
    "q78": """
        WITH ws AS (
            SELECT d_year AS ws_sold_year, ws_item_sk, ws_bill_customer_sk AS ws_customer_sk, sum(ws_quantity) AS ws_qty
            FROM web_sales LEFT JOIN web_returns ON wr_order_number = ws_order_number AND ws_item_sk = wr_item_sk JOIN date_dim ON ws_sold_date_sk = d_date_sk
            WHERE wr_order_number IS NULL GROUP BY d_year, ws_item_sk, ws_bill_customer_sk),
        ss AS (
            SELECT d_year AS ss_sold_year, ss_item_sk, ss_customer_sk, sum(ss_quantity) AS ss_qty
            FROM store_sales LEFT JOIN store_returns ON sr_ticket_number = ss_ticket_number AND ss_item_sk = sr_item_sk JOIN date_dim ON ss_sold_date_sk = d_date_sk
            WHERE sr_ticket_number IS NULL GROUP BY d_year, ss_item_sk, ss_customer_sk)
        SELECT ss_sold_year, ss_item_sk, ss_customer_sk, round(ss_qty / (coalesce(ws_qty, 0) + 1), 2) AS ratio, ss_qty AS store_qty
        FROM ss LEFT JOIN ws ON (ws_sold_year = ss_sold_year AND ws_item_sk = ss_item_sk AND ws_customer_sk = ss_customer_sk)
        WHERE coalesce(ws_qty, 0) > 0 AND ss_sold_year >= 1998
        ORDER BY ss_sold_year, ss_item_sk, ss_customer_sk, ss_qty DESC LIMIT 100""",
    "q79": """
        SELECT c_last_name, c_first_name, substr(s_city, 1, 30) AS city, ss_ticket_number, amt, profit
        FROM (SELECT ss_ticket_number, ss_customer_sk, store.s_city, sum(ss_coupon_amt) AS amt, sum(ss_net_profit) AS profit
              FROM store_sales, date_dim, store, household_demographics
              WHERE store_sales.ss_sold_date_sk = date_dim.d_date_sk AND store_sales.ss_store_sk = store.s_store_sk AND store_sales.ss_hdemo_sk = household_demographics.hd_demo_sk
                AND (household_demographics.hd_dep_count = 2 OR household_demographics.hd_vehicle_count > 2) AND date_dim.d_dow = 1 AND date_dim.d_year IN (1999, 2000, 2001)
              GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, store.s_city) ms, customer
        WHERE ss_customer_sk = c_customer_sk ORDER BY c_last_name, c_first_name, substr(s_city, 1, 30), profit LIMIT 100""",
    "q80": """
        WITH ssr AS (
            SELECT s_store_id AS store_id, sum(ss_ext_sales_price) AS sales, sum(coalesce(sr_return_amt, 0)) AS returns_amt, sum(ss_net_profit - coalesce(sr_net_loss, 0)) AS profit
            FROM store_sales LEFT OUTER JOIN store_returns ON (ss_item_sk = sr_item_sk AND ss_ticket_number = sr_ticket_number), date_dim, store, item, promotion
            WHERE ss_sold_date_sk = d_date_sk AND d_year = 2000 AND ss_store_sk = s_store_sk AND ss_item_sk = i_item_sk AND i_current_price > 50 AND ss_promo_sk = p_promo_sk AND p_channel_tv = 'N'
            GROUP BY s_store_id),
        wsr AS (
            SELECT web_site_id, sum(ws_ext_sales_price) AS sales, sum(coalesce(wr_return_amt, 0)) AS returns_amt, sum(ws_net_profit - coalesce(wr_net_loss, 0)) AS profit
            FROM web_sales LEFT OUTER JOIN web_returns ON (ws_item_sk = wr_item_sk AND ws_order_number = wr_order_number), date_dim, web_site, item, promotion
            WHERE ws_sold_date_sk = d_date_sk AND d_year = 2000 AND ws_web_site_sk = web_site_sk AND ws_item_sk = i_item_sk AND i_current_price > 50 AND ws_promo_sk = p_promo_sk AND p_channel_tv = 'N'
            GROUP BY web_site_id)
        SELECT channel, id, sum(sales) AS sales, sum(returns_amt) AS returns_amt, sum(profit) AS profit
        FROM (SELECT 'store channel' AS channel, concat('store', store_id) AS id, sales, returns_amt, profit FROM ssr
              UNION ALL SELECT 'web channel', concat('web_site', web_site_id), sales, returns_amt, profit FROM wsr) x
        GROUP BY ROLLUP (channel, id) ORDER BY channel, id LIMIT 100""",
    "q81": """
        WITH customer_total_return AS (
            SELECT cr_returning_customer_sk AS ctr_customer_sk, ca_state AS ctr_state, sum(cr_return_amt_inc_tax) AS ctr_total_return
            FROM catalog_returns, date_dim, customer_address WHERE cr_returned_date_sk = d_date_sk AND d_year = 2000 AND cr_returning_addr_sk = ca_address_sk
            GROUP BY cr_returning_customer_sk, ca_state)
        SELECT c_customer_id, c_salutation, c_first_name, ca_city, ca_zip, ctr_total_return
        FROM customer_total_return ctr1, customer_address, customer
        WHERE ctr1.ctr_total_return > (SELECT avg(ctr_total_return) * 1.2 FROM customer_total_return ctr2 WHERE ctr1.ctr_state = ctr2.ctr_state)
          AND ca_address_sk = c_current_addr_sk AND ctr1.ctr_customer_sk = c_customer_sk
        ORDER BY c_customer_id, c_salutation, c_first_name, ca_city, ca_zip, ctr_total_return LIMIT 100""",
    "q82": """
        SELECT i_item_id, i_item_desc, i_current_price
        FROM item, inventory, date_dim, store_sales
        WHERE i_current_price BETWEEN 30 AND 30 + 130 AND inv_item_sk = i_item_sk AND d_date_sk = inv_date_sk AND d_date BETWEEN DATE '2000-05-25' AND DATE '2000-05-25' + INTERVAL 200 DAYS
          AND i_manufact_id IN (0, 2) AND inv_quantity_on_hand BETWEEN 10 AND 90 AND ss_item_sk = i_item_sk
        GROUP BY i_item_id, i_item_desc, i_current_price ORDER BY i_item_id LIMIT 100""",
    "q83": """
        WITH sr_items AS (
            SELECT i_item_id AS item_id, sum(sr_return_quantity) AS sr_item_qty FROM store_returns, item, date_dim
            WHERE sr_item_sk = i_item_sk AND d_date IN (SELECT d_date FROM date_dim WHERE d_week_seq IN (SELECT d_week_seq FROM date_dim WHERE d_year = 2000)) AND sr_returned_date_sk = d_date_sk
            GROUP BY i_item_id),
        wr_items AS (
            SELECT i_item_id AS item_id, sum(wr_return_quantity) AS wr_item_qty FROM web_returns, item, date_dim
            WHERE wr_item_sk = i_item_sk AND d_date IN (SELECT d_date FROM date_dim WHERE d_week_seq IN (SELECT d_week_seq FROM date_dim WHERE d_year = 2000)) AND wr_returned_date_sk = d_date_sk
            GROUP BY i_item_id)
        SELECT sr_items.item_id, sr_item_qty, sr_item_qty / (sr_item_qty + wr_item_qty) / 2.0 * 100 AS sr_dev, wr_item_qty, (sr_item_qty + wr_item_qty) / 2.0 AS average
        FROM sr_items, wr_items WHERE sr_items.item_id = wr_items.item_id ORDER BY sr_items.item_id, sr_item_qty LIMIT 100""",
    "q84": """
        SELECT c_customer_id AS customer_id, concat(c_last_name, ', ', c_first_name) AS customername
        FROM customer, customer_address, customer_demographics, household_demographics, income_band, store_returns
        WHERE ca_city = 'Midway' AND c_current_addr_sk = ca_address_sk AND ib_lower_bound >= 1 AND ib_upper_bound <= 5000 AND ib_income_band_sk = hd_income_band_sk
          AND cd_demo_sk = c_current_cdemo_sk AND hd_demo_sk = c_current_hdemo_sk AND sr_cdemo_sk = cd_demo_sk
        ORDER BY c_customer_id LIMIT 1000""",
    "q85": """
        SELECT substr(r_reason_desc, 1, 20) AS r, avg(ws_quantity) AS a, avg(wr_refunded_cash) AS b, avg(wr_fee) AS c
        FROM web_sales, web_returns, web_page, customer_demographics cd1, customer_demographics cd2, customer_address, date_dim, reason
        WHERE ws_web_page_sk = wp_web_page_sk AND ws_order_number = wr_order_number AND ws_sold_date_sk = d_date_sk AND d_year >= 1998
          AND cd1.cd_demo_sk = wr_refunded_cdemo_sk AND cd2.cd_demo_sk = wr_returning_cdemo_sk AND ca_address_sk = wr_refunded_addr_sk AND r_reason_sk = wr_reason_sk
          AND ((cd1.cd_marital_status = 'M' AND cd1.cd_gender <> cd2.cd_gender AND ws_sales_price BETWEEN 1.00 AND 190.00) OR (cd1.cd_marital_status = 'S' AND ws_sales_price BETWEEN 5.00 AND 200.00))
          AND ((ca_country = 'United States' AND ca_state IN ('CA', 'TX') AND ws_net_profit BETWEEN 1 AND 200) OR (ca_country = 'United States' AND ca_state IN ('TN', 'GA') AND ws_net_profit BETWEEN 15 AND 300))
        GROUP BY r_reason_desc ORDER BY r, a, b, c LIMIT 100""",
    "q86": """
        SELECT sum(ws_net_paid) AS total_sum, i_category, i_class, grouping(i_category) + grouping(i_class) AS lochierarchy,
               rank() OVER (PARTITION BY grouping(i_category) + grouping(i_class), CASE WHEN grouping(i_class) = 0 THEN i_category END ORDER BY sum(ws_net_paid) DESC) AS rank_within_parent
        FROM web_sales, date_dim d1, item
        WHERE d1.d_month_seq BETWEEN 1200 AND 1200 + 11 AND d1.d_date_sk = ws_sold_date_sk AND i_item_sk = ws_item_sk
        GROUP BY ROLLUP (i_category, i_class)
        ORDER BY lochierarchy DESC, CASE WHEN lochierarchy = 0 THEN i_category END, rank_within_parent LIMIT 100""",
    "q87": """
        SELECT count(*) AS n FROM (
            (SELECT DISTINCT c_last_name, c_first_name, d_date FROM store_sales, date_dim, customer
             WHERE store_sales.ss_sold_date_sk = date_dim.d_date_sk AND store_sales.ss_customer_sk = customer.c_customer_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11)
            EXCEPT
            (SELECT DISTINCT c_last_name, c_first_name, d_date FROM catalog_sales, date_dim, customer
             WHERE catalog_sales.cs_sold_date_sk = date_dim.d_date_sk AND catalog_sales.cs_bill_customer_sk = customer.c_customer_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11)
            EXCEPT
            (SELECT DISTINCT c_last_name, c_first_name, d_date FROM web_sales, date_dim, customer
             WHERE web_sales.ws_sold_date_sk = date_dim.d_date_sk AND web_sales.ws_bill_customer_sk = customer.c_customer_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11)) cool_cust""",
    "q88": """
        SELECT * FROM
            (SELECT count(*) AS h8_30_to_9 FROM store_sales, household_demographics, time_dim, store
             WHERE ss_sold_time_sk = time_dim.t_time_sk AND ss_hdemo_sk = household_demographics.hd_demo_sk AND ss_store_sk = s_store_sk AND time_dim.t_hour = 8 AND time_dim.t_minute >= 30
               AND ((household_demographics.hd_dep_count = 3 AND household_demographics.hd_vehicle_count <= 3 + 2) OR (household_demographics.hd_dep_count = 0 AND household_demographics.hd_vehicle_count <= 2))) s1,
            (SELECT count(*) AS h9_to_12 FROM store_sales, household_demographics, time_dim, store
             WHERE ss_sold_time_sk = time_dim.t_time_sk AND ss_hdemo_sk = household_demographics.hd_demo_sk AND ss_store_sk = s_store_sk AND time_dim.t_hour BETWEEN 9 AND 12
               AND ((household_demographics.hd_dep_count = 3 AND household_demographics.hd_vehicle_count <= 3 + 2) OR (household_demographics.hd_dep_count = 0 AND household_demographics.hd_vehicle_count <= 2))) s2""",
    "q89": """
        SELECT * FROM (
            SELECT i_category, i_class, i_brand, s_store_name, s_company_name, d_moy, sum(ss_sales_price) AS sum_sales,
                   avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name) AS avg_monthly_sales
            FROM item, store_sales, date_dim, store
            WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND d_year IN (1999) AND (i_category IN ('Books', 'Electronics', 'Sports') OR i_class IN ('dresses'))
            GROUP BY i_category, i_class, i_brand, s_store_name, s_company_name, d_moy) tmp1
        WHERE CASE WHEN (avg_monthly_sales <> 0) THEN (abs(sum_sales - avg_monthly_sales) / avg_monthly_sales) ELSE NULL END > 0.1
        ORDER BY sum_sales - avg_monthly_sales, s_store_name LIMIT 100""",
    "q90": """
        SELECT CAST(amc AS DECIMAL(15,4)) / CAST(pmc AS DECIMAL(15,4)) AS am_pm_ratio
        FROM (SELECT count(*) AS amc FROM web_sales, household_demographics, time_dim, web_page
              WHERE ws_sold_time_sk = time_dim.t_time_sk AND ws_ship_hdemo_sk = household_demographics.hd_demo_sk AND ws_web_page_sk = web_page.wp_web_page_sk AND time_dim.t_hour BETWEEN 6 AND 12) at,
             (SELECT count(*) AS pmc FROM web_sales, household_demographics, time_dim, web_page
              WHERE ws_sold_time_sk = time_dim.t_time_sk AND ws_ship_hdemo_sk = household_demographics.hd_demo_sk AND ws_web_page_sk = web_page.wp_web_page_sk AND time_dim.t_hour BETWEEN 13 AND 23) pt
        ORDER BY am_pm_ratio LIMIT 100""",
    "q91": """
        SELECT cc_call_center_id AS call_center, cc_name, cc_manager, sum(cr_net_loss) AS returns_loss
        FROM call_center, catalog_returns, date_dim, customer, customer_address, customer_demographics, household_demographics
        WHERE cr_call_center_sk = cc_call_center_sk AND cr_returned_date_sk = d_date_sk AND cr_returning_customer_sk = c_customer_sk AND cd_demo_sk = c_current_cdemo_sk
          AND hd_demo_sk = c_current_hdemo_sk AND ca_address_sk = c_current_addr_sk AND d_year >= 1998
          AND ((cd_marital_status = 'M' AND cd_education_status = 'Unknown') OR (cd_marital_status IN ('W', 'S') AND cd_education_status <> 'Unknown'))
        GROUP BY cc_call_center_id, cc_name, cc_manager, cd_marital_status, cd_education_status ORDER BY returns_loss DESC""",
    "q92": """
        SELECT sum(ws_ext_discount_amt) AS excess
        FROM web_sales, item, date_dim
        WHERE i_manufact_id = 1 AND i_item_sk = ws_item_sk AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL 300 DAYS AND d_date_sk = ws_sold_date_sk
          AND ws_ext_discount_amt > (SELECT 1.3 * avg(ws_ext_discount_amt) FROM web_sales, date_dim
                                     WHERE ws_item_sk = i_item_sk AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL 300 DAYS AND d_date_sk = ws_sold_date_sk)
        ORDER BY excess LIMIT 100""",
    "q93": """
        SELECT ss_customer_sk, sum(act_sales) AS sumsales
        FROM (SELECT ss_item_sk, ss_ticket_number, ss_customer_sk,
                     CASE WHEN sr_return_quantity IS NOT NULL THEN (ss_quantity - sr_return_quantity) * ss_sales_price ELSE (ss_quantity * ss_sales_price) END AS act_sales
              FROM store_sales LEFT OUTER JOIN store_returns ON (sr_ticket_number = ss_ticket_number), reason
              WHERE sr_reason_sk = r_reason_sk AND r_reason_desc <> 'reason 1') t
        GROUP BY ss_customer_sk ORDER BY sumsales, ss_customer_sk LIMIT 100""",
    "q94": """
        SELECT count(DISTINCT ws_order_number) AS order_count, sum(ws_ext_ship_cost) AS ship_cost, sum(ws_net_profit) AS profit
        FROM web_sales ws1, date_dim, customer_address, web_site
        WHERE d_date BETWEEN DATE '1999-02-01' AND DATE '1999-02-01' + INTERVAL 300 DAYS AND ws1.ws_ship_date_sk = d_date_sk AND ws1.ws_ship_addr_sk = ca_address_sk AND ca_state IN ('TN', 'CA')
          AND ws1.ws_web_site_sk = web_site_sk
          AND EXISTS (SELECT * FROM web_sales ws2 WHERE ws1.ws_order_number = ws2.ws_order_number AND ws1.ws_warehouse_sk <> ws2.ws_warehouse_sk)
          AND NOT EXISTS (SELECT * FROM web_returns wr1 WHERE ws1.ws_order_number = wr1.wr_order_number)
        ORDER BY order_count LIMIT 100""",
    "q95": """
        WITH ws_wh AS (SELECT ws1.ws_order_number, ws1.ws_warehouse_sk AS wh1, ws2.ws_warehouse_sk AS wh2 FROM web_sales ws1, web_sales ws2
                       WHERE ws1.ws_order_number = ws2.ws_order_number AND ws1.ws_warehouse_sk <> ws2.ws_warehouse_sk)
        SELECT count(DISTINCT ws_order_number) AS order_count, sum(ws_ext_ship_cost) AS ship_cost, sum(ws_net_profit) AS profit
        FROM web_sales ws1, date_dim, customer_address, web_site
        WHERE d_date BETWEEN DATE '1999-02-01' AND DATE '1999-02-01' + INTERVAL 300 DAYS AND ws1.ws_ship_date_sk = d_date_sk AND ws1.ws_ship_addr_sk = ca_address_sk AND ws1.ws_web_site_sk = web_site_sk
          AND ws1.ws_order_number IN (SELECT ws_order_number FROM ws_wh)
          AND ws1.ws_order_number IN (SELECT wr_order_number FROM web_returns, ws_wh WHERE wr_order_number = ws_wh.ws_order_number)
        ORDER BY order_count LIMIT 100""",
    "q96": """
        SELECT count(*) AS n FROM store_sales, household_demographics, time_dim, store
        WHERE ss_sold_time_sk = time_dim.t_time_sk AND ss_hdemo_sk = household_demographics.hd_demo_sk AND ss_store_sk = s_store_sk
          AND time_dim.t_hour >= 10 AND time_dim.t_minute >= 30 AND household_demographics.hd_dep_count > 1 AND store.s_store_name = 'ese'
        ORDER BY n LIMIT 100""",
    "q97": """
        WITH ssci AS (SELECT ss_customer_sk AS customer_sk, ss_item_sk AS item_sk FROM store_sales, date_dim
                      WHERE ss_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11 GROUP BY ss_customer_sk, ss_item_sk),
             csci AS (SELECT cs_bill_customer_sk AS customer_sk, cs_item_sk AS item_sk FROM catalog_sales, date_dim
                      WHERE cs_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11 GROUP BY cs_bill_customer_sk, cs_item_sk)
        SELECT sum(CASE WHEN ssci.customer_sk IS NOT NULL AND csci.customer_sk IS NULL THEN 1 ELSE 0 END) AS store_only,
               sum(CASE WHEN ssci.customer_sk IS NULL AND csci.customer_sk IS NOT NULL THEN 1 ELSE 0 END) AS catalog_only,
               sum(CASE WHEN ssci.customer_sk IS NOT NULL AND csci.customer_sk IS NOT NULL THEN 1 ELSE 0 END) AS store_and_catalog
        FROM ssci FULL OUTER JOIN csci ON (ssci.customer_sk = csci.customer_sk AND ssci.item_sk = csci.item_sk) LIMIT 100""",
    "q98": """
        SELECT i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(ss_ext_sales_price) AS itemrevenue,
               sum(ss_ext_sales_price) * 100 / sum(sum(ss_ext_sales_price)) OVER (PARTITION BY i_class) AS revenueratio
        FROM store_sales, item, date_dim
        WHERE ss_item_sk = i_item_sk AND i_category IN ('Sports', 'Books', 'Home') AND ss_sold_date_sk = d_date_sk AND d_date BETWEEN DATE '1999-02-22' AND DATE '1999-02-22' + INTERVAL 90 DAYS
        GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price ORDER BY i_category, i_class, i_item_id, i_item_desc, revenueratio""",
    "q99": """
        SELECT substr(w_warehouse_name, 1, 20) AS w, sm_type, cc_name,
               sum(CASE WHEN (cs_ship_date_sk - cs_sold_date_sk <= 30) THEN 1 ELSE 0 END) AS d30,
               sum(CASE WHEN (cs_ship_date_sk - cs_sold_date_sk > 30) AND (cs_ship_date_sk - cs_sold_date_sk <= 60) THEN 1 ELSE 0 END) AS d60,
               sum(CASE WHEN (cs_ship_date_sk - cs_sold_date_sk > 60) THEN 1 ELSE 0 END) AS more
        FROM catalog_sales, warehouse, ship_mode, call_center, date_dim
        WHERE d_month_seq BETWEEN 1200 AND 1200 + 11 AND cs_ship_date_sk = d_date_sk AND cs_warehouse_sk = w_warehouse_sk AND cs_ship_mode_sk = sm_ship_mode_sk AND cs_call_center_sk = cc_call_center_sk
        GROUP BY substr(w_warehouse_name, 1, 20), sm_type, cc_name ORDER BY w, sm_type, cc_name LIMIT 100""",
}
