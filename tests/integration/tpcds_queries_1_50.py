"""Queries of TPC-DS in Spark SQL, written down for this project, with parameters that its small data answers.

The numbers are those of the benchmark's queries. What is left out of its 99 was not written down.
"""

# ruff: noqa: E501  # queries have the width they have

QUERIES = {
    "q1": """
        WITH customer_total_return AS (
            SELECT sr_customer_sk AS ctr_customer_sk, sr_store_sk AS ctr_store_sk, sum(sr_return_amt) AS ctr_total_return
            FROM store_returns, date_dim WHERE sr_returned_date_sk = d_date_sk AND d_year = 2000
            GROUP BY sr_customer_sk, sr_store_sk)
        SELECT c_customer_id
        FROM customer_total_return ctr1, store, customer
        WHERE ctr1.ctr_total_return > (SELECT avg(ctr_total_return) * 1.2 FROM customer_total_return ctr2
                                       WHERE ctr1.ctr_store_sk = ctr2.ctr_store_sk)
          AND s_store_sk = ctr1.ctr_store_sk AND s_state IN ('TN', 'GA', 'CA') AND ctr1.ctr_customer_sk = c_customer_sk
        ORDER BY c_customer_id LIMIT 100""",
    "q2": """
        WITH wscs AS (
            SELECT sold_date_sk, sales_price FROM (
                SELECT ws_sold_date_sk AS sold_date_sk, ws_ext_sales_price AS sales_price FROM web_sales
                UNION ALL SELECT cs_sold_date_sk, cs_ext_sales_price FROM catalog_sales)),
        wswscs AS (
            SELECT d_week_seq, sum(CASE WHEN d_day_name = 'Sunday' THEN sales_price END) AS sun_sales,
                   sum(CASE WHEN d_day_name = 'Monday' THEN sales_price END) AS mon_sales,
                   sum(CASE WHEN d_day_name = 'Friday' THEN sales_price END) AS fri_sales
            FROM wscs, date_dim WHERE d_date_sk = sold_date_sk GROUP BY d_week_seq)
        SELECT d_week_seq1, round(sun_sales1 / sun_sales2, 2) AS r_sun, round(mon_sales1 / mon_sales2, 2) AS r_mon,
               round(fri_sales1 / fri_sales2, 2) AS r_fri
        FROM (SELECT wswscs.d_week_seq AS d_week_seq1, sun_sales AS sun_sales1, mon_sales AS mon_sales1, fri_sales AS fri_sales1
              FROM wswscs, date_dim WHERE date_dim.d_week_seq = wswscs.d_week_seq AND d_year = 2000) y,
             (SELECT wswscs.d_week_seq AS d_week_seq2, sun_sales AS sun_sales2, mon_sales AS mon_sales2, fri_sales AS fri_sales2
              FROM wswscs, date_dim WHERE date_dim.d_week_seq = wswscs.d_week_seq AND d_year = 2001) z
        WHERE d_week_seq1 = d_week_seq2 - 53
        ORDER BY d_week_seq1""",
    "q3": """
        SELECT dt.d_year, item.i_brand_id AS brand_id, item.i_brand AS brand, sum(ss_ext_sales_price) AS sum_agg
        FROM date_dim dt, store_sales, item
        WHERE dt.d_date_sk = store_sales.ss_sold_date_sk AND store_sales.ss_item_sk = item.i_item_sk
          AND item.i_manufact_id = 1 AND dt.d_moy = 11
        GROUP BY dt.d_year, item.i_brand, item.i_brand_id
        ORDER BY dt.d_year, sum_agg DESC, brand_id LIMIT 100""",
    "q4": """
        WITH year_total AS (
            SELECT c_customer_id AS customer_id, c_first_name AS first_name, d_year AS dyear,
                   sum((ss_ext_list_price - ss_ext_wholesale_cost - ss_ext_discount_amt + ss_ext_sales_price) / 2) AS total, 's' AS sale_type
            FROM customer, store_sales, date_dim WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk
            GROUP BY c_customer_id, c_first_name, d_year
            UNION ALL
            SELECT c_customer_id, c_first_name, d_year,
                   sum((cs_ext_list_price - cs_ext_wholesale_cost - cs_ext_discount_amt + cs_ext_sales_price) / 2), 'c'
            FROM customer, catalog_sales, date_dim WHERE c_customer_sk = cs_bill_customer_sk AND cs_sold_date_sk = d_date_sk
            GROUP BY c_customer_id, c_first_name, d_year)
        SELECT s2.customer_id, s2.first_name
        FROM year_total s1, year_total s2, year_total c1, year_total c2
        WHERE s2.customer_id = s1.customer_id AND s1.customer_id = c2.customer_id AND s1.customer_id = c1.customer_id
          AND s1.sale_type = 's' AND c1.sale_type = 'c' AND s2.sale_type = 's' AND c2.sale_type = 'c'
          AND s1.dyear = 1999 AND s2.dyear = 2000 AND c1.dyear = 1999 AND c2.dyear = 2000 AND s1.total > 0 AND c1.total > 0
          AND CASE WHEN c1.total > 0 THEN c2.total / c1.total ELSE NULL END
              > CASE WHEN s1.total > 0 THEN s2.total / s1.total ELSE NULL END
        ORDER BY s2.customer_id, s2.first_name LIMIT 100""",
    "q5": """
        WITH ssr AS (
            SELECT s_store_id, sum(sales_price) AS sales, sum(profit) AS profit, sum(return_amt) AS returns_amt, sum(net_loss) AS profit_loss
            FROM (SELECT ss_store_sk AS store_sk, ss_sold_date_sk AS date_sk, ss_ext_sales_price AS sales_price, ss_net_profit AS profit,
                         CAST(0 AS DECIMAL(7,2)) AS return_amt, CAST(0 AS DECIMAL(7,2)) AS net_loss FROM store_sales
                  UNION ALL
                  SELECT sr_store_sk, sr_returned_date_sk, CAST(0 AS DECIMAL(7,2)), CAST(0 AS DECIMAL(7,2)), sr_return_amt, sr_net_loss
                  FROM store_returns) salesreturns, date_dim, store
            WHERE date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-01' AND DATE '2000-08-01' + INTERVAL 40 DAYS
              AND store_sk = s_store_sk
            GROUP BY s_store_id),
        wsr AS (
            SELECT web_site_id, sum(sales_price) AS sales, sum(profit) AS profit, sum(return_amt) AS returns_amt, sum(net_loss) AS profit_loss
            FROM (SELECT ws_web_site_sk AS wsr_web_site_sk, ws_sold_date_sk AS date_sk, ws_ext_sales_price AS sales_price,
                         ws_net_profit AS profit, CAST(0 AS DECIMAL(7,2)) AS return_amt, CAST(0 AS DECIMAL(7,2)) AS net_loss FROM web_sales
                  UNION ALL
                  SELECT ws_web_site_sk, wr_returned_date_sk, CAST(0 AS DECIMAL(7,2)), CAST(0 AS DECIMAL(7,2)), wr_return_amt, wr_net_loss
                  FROM web_returns LEFT OUTER JOIN web_sales ON (wr_item_sk = ws_item_sk AND wr_order_number = ws_order_number)) salesreturns,
                 date_dim, web_site
            WHERE date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-01' AND DATE '2000-08-01' + INTERVAL 40 DAYS
              AND wsr_web_site_sk = web_site_sk
            GROUP BY web_site_id)
        SELECT channel, id, sum(sales) AS sales, sum(returns_amt) AS returns_amt, sum(profit) AS profit
        FROM (SELECT 'store channel' AS channel, concat('store', s_store_id) AS id, sales, returns_amt, (profit - profit_loss) AS profit FROM ssr
              UNION ALL
              SELECT 'web channel', concat('web_site', web_site_id), sales, returns_amt, (profit - profit_loss) FROM wsr) x
        GROUP BY ROLLUP (channel, id)
        ORDER BY channel, id LIMIT 100""",
    "q6": """
        SELECT a.ca_state AS state, count(*) AS cnt
        FROM customer_address a, customer c, store_sales s, date_dim d, item i
        WHERE a.ca_address_sk = c.c_current_addr_sk AND c.c_customer_sk = s.ss_customer_sk
          AND s.ss_sold_date_sk = d.d_date_sk AND s.ss_item_sk = i.i_item_sk
          AND d.d_month_seq = (SELECT DISTINCT d_month_seq FROM date_dim WHERE d_year = 2001 AND d_moy = 1)
          AND i.i_current_price > 1.2 * (SELECT avg(j.i_current_price) FROM item j WHERE j.i_category = i.i_category)
        GROUP BY a.ca_state HAVING count(*) >= 1
        ORDER BY cnt, a.ca_state LIMIT 100""",
    "q7": """
        SELECT i_item_id, avg(ss_quantity) AS agg1, avg(ss_list_price) AS agg2, avg(ss_coupon_amt) AS agg3, avg(ss_sales_price) AS agg4
        FROM store_sales, customer_demographics, date_dim, item, promotion
        WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND ss_cdemo_sk = cd_demo_sk AND ss_promo_sk = p_promo_sk
          AND cd_gender = 'M' AND (p_channel_email = 'N' OR p_channel_event = 'N') AND d_year = 2000
        GROUP BY i_item_id ORDER BY i_item_id LIMIT 100""",
    "q8": """
        SELECT s_store_name, sum(ss_net_profit) AS profit
        FROM store_sales, date_dim, store,
             (SELECT ca_zip FROM (
                  SELECT substr(ca_zip, 1, 5) AS ca_zip FROM customer_address WHERE substr(ca_zip, 1, 5) IN ('24128', '85669', '35709')
                  INTERSECT
                  SELECT ca_zip FROM (SELECT substr(ca_zip, 1, 5) AS ca_zip, count(*) AS cnt FROM customer_address, customer
                                      WHERE ca_address_sk = c_current_addr_sk AND c_preferred_cust_flag = 'Y'
                                      GROUP BY ca_zip HAVING count(*) > 1) a1) a2) v1
        WHERE ss_store_sk = s_store_sk AND ss_sold_date_sk = d_date_sk AND d_qoy = 2 AND d_year = 1998
          AND substr(s_zip, 1, 2) = substr(v1.ca_zip, 1, 2)
        GROUP BY s_store_name ORDER BY s_store_name LIMIT 100""",
    "q9": """
        SELECT CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20) > 60
                    THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20)
                    ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20) END AS bucket1,
               CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40) > 600
                    THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40)
                    ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40) END AS bucket2
        FROM reason WHERE r_reason_sk = 1""",
    "q10": """
        SELECT cd_gender, cd_marital_status, count(*) AS cnt1, cd_purchase_estimate, count(*) AS cnt2
        FROM customer c, customer_address ca, customer_demographics
        WHERE c.c_current_addr_sk = ca.ca_address_sk AND ca_county IN ('Rush County', 'Dona Ana County', 'Williamson County')
          AND cd_demo_sk = c.c_current_cdemo_sk
          AND EXISTS (SELECT * FROM store_sales, date_dim WHERE c.c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2002)
          AND (EXISTS (SELECT * FROM web_sales, date_dim WHERE c.c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2002)
               OR EXISTS (SELECT * FROM catalog_sales, date_dim WHERE c.c_customer_sk = cs_ship_customer_sk AND cs_sold_date_sk = d_date_sk AND d_year = 2002))
        GROUP BY cd_gender, cd_marital_status, cd_purchase_estimate
        ORDER BY cd_gender, cd_marital_status, cd_purchase_estimate LIMIT 100""",
    "q11": """
        WITH year_total AS (
            SELECT c_customer_id AS customer_id, c_preferred_cust_flag AS flag, d_year AS dyear, sum(ss_ext_list_price - ss_ext_discount_amt) AS total, 's' AS sale_type
            FROM customer, store_sales, date_dim WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk
            GROUP BY c_customer_id, c_preferred_cust_flag, d_year
            UNION ALL
            SELECT c_customer_id, c_preferred_cust_flag, d_year, sum(ws_ext_list_price - ws_ext_discount_amt), 'w'
            FROM customer, web_sales, date_dim WHERE c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk
            GROUP BY c_customer_id, c_preferred_cust_flag, d_year)
        SELECT t_s_secyear.customer_id, t_s_secyear.flag
        FROM year_total t_s_firstyear, year_total t_s_secyear, year_total t_w_firstyear, year_total t_w_secyear
        WHERE t_s_secyear.customer_id = t_s_firstyear.customer_id AND t_s_firstyear.customer_id = t_w_secyear.customer_id
          AND t_s_firstyear.customer_id = t_w_firstyear.customer_id AND t_s_firstyear.sale_type = 's' AND t_w_firstyear.sale_type = 'w'
          AND t_s_secyear.sale_type = 's' AND t_w_secyear.sale_type = 'w' AND t_s_firstyear.dyear = 2000 AND t_s_secyear.dyear = 2001
          AND t_w_firstyear.dyear = 2000 AND t_w_secyear.dyear = 2001
          AND CASE WHEN t_w_firstyear.total > 0 THEN t_w_secyear.total / t_w_firstyear.total ELSE 0.0 END
              > CASE WHEN t_s_firstyear.total > 0 THEN t_s_secyear.total / t_s_firstyear.total ELSE 0.0 END
        ORDER BY t_s_secyear.customer_id, t_s_secyear.flag LIMIT 100""",
    "q12": """
        SELECT i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(ws_ext_sales_price) AS itemrevenue,
               sum(ws_ext_sales_price) * 100 / sum(sum(ws_ext_sales_price)) OVER (PARTITION BY i_class) AS revenueratio
        FROM web_sales, item, date_dim
        WHERE ws_item_sk = i_item_sk AND i_category IN ('Sports', 'Books', 'Home') AND ws_sold_date_sk = d_date_sk
          AND d_date BETWEEN DATE '1999-02-22' AND DATE '1999-02-22' + INTERVAL 120 DAYS
        GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price
        ORDER BY i_category, i_class, i_item_id, i_item_desc, revenueratio LIMIT 100""",
    "q13": """
        SELECT avg(ss_quantity) AS q, avg(ss_ext_sales_price) AS p, avg(ss_ext_wholesale_cost) AS w, sum(ss_ext_wholesale_cost) AS s
        FROM store_sales, store, customer_demographics, household_demographics, customer_address, date_dim
        WHERE s_store_sk = ss_store_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2001
          AND ((ss_hdemo_sk = hd_demo_sk AND cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'M' AND ss_sales_price BETWEEN 10.00 AND 150.00 AND hd_dep_count = 3)
               OR (ss_hdemo_sk = hd_demo_sk AND cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'S' AND ss_sales_price BETWEEN 50.00 AND 200.00 AND hd_dep_count = 1))
          AND ((ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('TX', 'CA') AND ss_net_profit BETWEEN 10 AND 200)
               OR (ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('TN', 'GA') AND ss_net_profit BETWEEN 15 AND 300))""",
    "q14": """
        WITH cross_items AS (
            SELECT i_item_sk AS ss_item_sk FROM item,
                (SELECT iss.i_brand_id AS brand_id, iss.i_class_id AS class_id, iss.i_category_id AS category_id
                 FROM store_sales, item iss, date_dim d1 WHERE ss_item_sk = iss.i_item_sk AND ss_sold_date_sk = d1.d_date_sk AND d1.d_year BETWEEN 1999 AND 2001
                 INTERSECT
                 SELECT ics.i_brand_id, ics.i_class_id, ics.i_category_id
                 FROM catalog_sales, item ics, date_dim d2 WHERE cs_item_sk = ics.i_item_sk AND cs_sold_date_sk = d2.d_date_sk AND d2.d_year BETWEEN 1999 AND 2001
                 INTERSECT
                 SELECT iws.i_brand_id, iws.i_class_id, iws.i_category_id
                 FROM web_sales, item iws, date_dim d3 WHERE ws_item_sk = iws.i_item_sk AND ws_sold_date_sk = d3.d_date_sk AND d3.d_year BETWEEN 1999 AND 2001) x
            WHERE i_brand_id = brand_id AND i_class_id = class_id AND i_category_id = category_id),
        avg_sales AS (
            SELECT avg(quantity * list_price) AS average_sales
            FROM (SELECT ss_quantity AS quantity, ss_list_price AS list_price FROM store_sales, date_dim WHERE ss_sold_date_sk = d_date_sk AND d_year BETWEEN 1999 AND 2001
                  UNION ALL
                  SELECT cs_quantity, cs_list_price FROM catalog_sales, date_dim WHERE cs_sold_date_sk = d_date_sk AND d_year BETWEEN 1999 AND 2001) x)
        SELECT channel, i_brand_id, i_class_id, i_category_id, sum(sales) AS sales, sum(number_sales) AS number_sales
        FROM (SELECT 'store' AS channel, i_brand_id, i_class_id, i_category_id, sum(ss_quantity * ss_list_price) AS sales, count(*) AS number_sales
              FROM store_sales, item, date_dim
              WHERE ss_item_sk IN (SELECT ss_item_sk FROM cross_items) AND ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 11
              GROUP BY i_brand_id, i_class_id, i_category_id
              HAVING sum(ss_quantity * ss_list_price) > (SELECT average_sales FROM avg_sales)
              UNION ALL
              SELECT 'web', i_brand_id, i_class_id, i_category_id, sum(ws_quantity * ws_list_price), count(*)
              FROM web_sales, item, date_dim
              WHERE ws_item_sk IN (SELECT ss_item_sk FROM cross_items) AND ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 11
              GROUP BY i_brand_id, i_class_id, i_category_id
              HAVING sum(ws_quantity * ws_list_price) > (SELECT average_sales FROM avg_sales)) y
        GROUP BY ROLLUP (channel, i_brand_id, i_class_id, i_category_id)
        ORDER BY channel, i_brand_id, i_class_id, i_category_id LIMIT 100""",
    "q15": """
        SELECT ca_zip, sum(cs_sales_price) AS total
        FROM catalog_sales, customer, customer_address, date_dim
        WHERE cs_bill_customer_sk = c_customer_sk AND c_current_addr_sk = ca_address_sk
          AND (substr(ca_zip, 1, 5) IN ('85669', '86197') OR ca_state IN ('CA', 'GA') OR cs_sales_price > 150)
          AND cs_sold_date_sk = d_date_sk AND d_qoy = 2 AND d_year = 2001
        GROUP BY ca_zip ORDER BY ca_zip LIMIT 100""",
    "q16": """
        SELECT count(DISTINCT cs_order_number) AS order_count, sum(cs_ext_ship_cost) AS ship, sum(cs_net_profit) AS profit
        FROM catalog_sales cs1, date_dim, customer_address, call_center
        WHERE d_date BETWEEN DATE '2002-02-01' AND DATE '2002-02-01' + INTERVAL 200 DAYS AND cs1.cs_ship_date_sk = d_date_sk
          AND cs1.cs_ship_addr_sk = ca_address_sk AND ca_state = 'GA' AND cs1.cs_call_center_sk = cc_call_center_sk
          AND EXISTS (SELECT * FROM catalog_sales cs2 WHERE cs1.cs_order_number = cs2.cs_order_number AND cs1.cs_warehouse_sk <> cs2.cs_warehouse_sk)
          AND NOT EXISTS (SELECT * FROM catalog_returns cr1 WHERE cs1.cs_order_number = cr1.cr_order_number)
        ORDER BY order_count LIMIT 100""",
    "q17": """
        SELECT i_item_id, s_state, count(ss_quantity) AS n, avg(ss_quantity) AS a, stddev_samp(ss_quantity) AS d,
               count(sr_return_quantity) AS rn, avg(sr_return_quantity) AS ra, count(cs_quantity) AS cn, avg(cs_quantity) AS ca
        FROM store_sales, store_returns, catalog_sales, date_dim d1, date_dim d2, date_dim d3, store, item
        WHERE d1.d_year = 2001 AND d1.d_date_sk = ss_sold_date_sk AND i_item_sk = ss_item_sk AND s_store_sk = ss_store_sk
          AND ss_customer_sk = sr_customer_sk AND ss_item_sk = sr_item_sk AND sr_returned_date_sk = d2.d_date_sk AND d2.d_year >= 1998
          AND sr_customer_sk = cs_bill_customer_sk AND sr_item_sk = cs_item_sk AND cs_sold_date_sk = d3.d_date_sk AND d3.d_year >= 1998
        GROUP BY i_item_id, s_state ORDER BY i_item_id, s_state LIMIT 100""",
    "q18": """
        SELECT i_item_id, ca_country, ca_state, ca_county, avg(CAST(cs_quantity AS DECIMAL(12,2))) AS agg1,
               avg(CAST(cs_list_price AS DECIMAL(12,2))) AS agg2, avg(CAST(cd1.cd_dep_count AS DECIMAL(12,2))) AS agg7
        FROM catalog_sales, customer_demographics cd1, customer_demographics cd2, customer, customer_address, date_dim, item
        WHERE cs_sold_date_sk = d_date_sk AND cs_item_sk = i_item_sk AND cs_bill_cdemo_sk = cd1.cd_demo_sk AND cs_bill_customer_sk = c_customer_sk
          AND cd1.cd_gender = 'F' AND c_current_cdemo_sk = cd2.cd_demo_sk AND c_current_addr_sk = ca_address_sk
          AND c_birth_month IN (1, 6, 8, 9) AND d_year = 1998 AND ca_state IN ('TN', 'GA')
        GROUP BY ROLLUP (i_item_id, ca_country, ca_state, ca_county)
        ORDER BY ca_country, ca_state, ca_county, i_item_id LIMIT 1000""",
    "q19": """
        SELECT i_brand_id AS brand_id, i_brand AS brand, i_manufact_id, i_manufact, sum(ss_ext_sales_price) AS ext_price
        FROM date_dim, store_sales, item, customer, customer_address, store
        WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_manager_id = 1 AND d_moy = 11 AND d_year = 1998
          AND ss_customer_sk = c_customer_sk AND c_current_addr_sk = ca_address_sk AND substr(ca_zip, 1, 5) <> substr(s_zip, 1, 5) AND ss_store_sk = s_store_sk
        GROUP BY i_brand, i_brand_id, i_manufact_id, i_manufact
        ORDER BY ext_price DESC, i_brand, i_brand_id, i_manufact_id, i_manufact LIMIT 100""",
    "q20": """
        SELECT i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(cs_ext_sales_price) AS itemrevenue,
               sum(cs_ext_sales_price) * 100 / sum(sum(cs_ext_sales_price)) OVER (PARTITION BY i_class) AS revenueratio
        FROM catalog_sales, item, date_dim
        WHERE cs_item_sk = i_item_sk AND i_category IN ('Sports', 'Books', 'Home') AND cs_sold_date_sk = d_date_sk
          AND d_date BETWEEN CAST('1999-02-22' AS DATE) AND CAST('1999-02-22' AS DATE) + INTERVAL '90' DAY
        GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price
        ORDER BY i_category, i_class, i_item_id, i_item_desc, revenueratio LIMIT 100""",
    "q21": """
        SELECT * FROM (
            SELECT w_warehouse_name, i_item_id,
                   sum(CASE WHEN d_date < DATE '2000-03-11' THEN inv_quantity_on_hand ELSE 0 END) AS inv_before,
                   sum(CASE WHEN d_date >= DATE '2000-03-11' THEN inv_quantity_on_hand ELSE 0 END) AS inv_after
            FROM inventory, warehouse, item, date_dim
            WHERE i_current_price BETWEEN 0.99 AND 149 AND i_item_sk = inv_item_sk AND inv_warehouse_sk = w_warehouse_sk AND inv_date_sk = d_date_sk
              AND d_date BETWEEN DATE '2000-03-11' - INTERVAL 400 DAYS AND DATE '2000-03-11' + INTERVAL 400 DAYS
            GROUP BY w_warehouse_name, i_item_id) x
        WHERE (CASE WHEN inv_before > 0 THEN inv_after / inv_before ELSE NULL END) BETWEEN 2.0 / 10.0 AND 30.0 / 2.0
        ORDER BY w_warehouse_name, i_item_id LIMIT 100""",
    "q22": """
        SELECT i_product_name, i_brand, i_class, i_category, avg(inv_quantity_on_hand) AS qoh
        FROM inventory, date_dim, item
        WHERE inv_date_sk = d_date_sk AND inv_item_sk = i_item_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11
        GROUP BY ROLLUP (i_product_name, i_brand, i_class, i_category)
        ORDER BY qoh, i_product_name, i_brand, i_class, i_category LIMIT 1000""",
    "q23": """
        WITH frequent_ss_items AS (
            SELECT substr(i_item_desc, 1, 30) AS itemdesc, i_item_sk AS item_sk, d_year AS solddate, count(*) AS cnt
            FROM store_sales, date_dim, item WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND d_year IN (2000, 2001)
            GROUP BY substr(i_item_desc, 1, 30), i_item_sk, d_year HAVING count(*) > 2),
        max_store_sales AS (
            SELECT max(csales) AS tpcds_cmax FROM (
                SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS csales
                FROM store_sales, customer, date_dim WHERE ss_customer_sk = c_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year IN (2000, 2001)
                GROUP BY c_customer_sk)),
        best_ss_customer AS (
            SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS ssales FROM store_sales, customer WHERE ss_customer_sk = c_customer_sk
            GROUP BY c_customer_sk HAVING sum(ss_quantity * ss_sales_price) > 0.5 * (SELECT * FROM max_store_sales))
        SELECT sum(sales) AS total
        FROM (SELECT cs_quantity * cs_list_price AS sales FROM catalog_sales, date_dim
              WHERE d_year = 2000 AND cs_sold_date_sk = d_date_sk AND cs_item_sk IN (SELECT item_sk FROM frequent_ss_items)
                AND cs_bill_customer_sk IN (SELECT c_customer_sk FROM best_ss_customer)
              UNION ALL
              SELECT ws_quantity * ws_list_price FROM web_sales, date_dim
              WHERE d_year = 2000 AND ws_sold_date_sk = d_date_sk AND ws_item_sk IN (SELECT item_sk FROM frequent_ss_items)
                AND ws_bill_customer_sk IN (SELECT c_customer_sk FROM best_ss_customer)) x""",
    "q24": """
        WITH ssales AS (
            SELECT c_last_name, c_first_name, s_store_name, ca_state, s_state, i_color, i_current_price, sum(ss_net_paid) AS netpaid
            FROM store_sales, store_returns, store, item, customer, customer_address
            WHERE ss_ticket_number = sr_ticket_number AND ss_customer_sk = c_customer_sk AND ss_item_sk = i_item_sk
              AND ss_store_sk = s_store_sk AND c_current_addr_sk = ca_address_sk AND s_market_id <= 2
            GROUP BY c_last_name, c_first_name, s_store_name, ca_state, s_state, i_color, i_current_price)
        SELECT c_last_name, c_first_name, s_store_name, sum(netpaid) AS paid
        FROM ssales WHERE i_color = 'pale'
        GROUP BY c_last_name, c_first_name, s_store_name
        HAVING sum(netpaid) > (SELECT 0.05 * avg(netpaid) FROM ssales)""",
    "q25": """
        SELECT i_item_id, i_item_desc, s_store_id, s_store_name, sum(ss_net_profit) AS store_sales_profit,
               sum(sr_net_loss) AS store_returns_loss, sum(cs_net_profit) AS catalog_sales_profit
        FROM store_sales, store_returns, catalog_sales, date_dim d1, date_dim d2, date_dim d3, store, item
        WHERE d1.d_year >= 1998 AND d1.d_date_sk = ss_sold_date_sk AND i_item_sk = ss_item_sk AND s_store_sk = ss_store_sk
          AND ss_customer_sk = sr_customer_sk AND ss_item_sk = sr_item_sk AND sr_returned_date_sk = d2.d_date_sk AND d2.d_moy BETWEEN 1 AND 10
          AND sr_customer_sk = cs_bill_customer_sk AND sr_item_sk = cs_item_sk AND cs_sold_date_sk = d3.d_date_sk AND d3.d_moy BETWEEN 2 AND 12
        GROUP BY i_item_id, i_item_desc, s_store_id, s_store_name
        ORDER BY i_item_id, i_item_desc, s_store_id, s_store_name LIMIT 100""",
    "q26": """
        SELECT i_item_id, avg(cs_quantity) AS agg1, avg(cs_list_price) AS agg2, avg(cs_coupon_amt) AS agg3, avg(cs_sales_price) AS agg4
        FROM catalog_sales, customer_demographics, date_dim, item, promotion
        WHERE cs_sold_date_sk = d_date_sk AND cs_item_sk = i_item_sk AND cs_bill_cdemo_sk = cd_demo_sk AND cs_promo_sk = p_promo_sk
          AND cd_gender = 'F' AND (p_channel_email = 'N' OR p_channel_event = 'N') AND d_year = 2000
        GROUP BY i_item_id ORDER BY i_item_id LIMIT 100""",
    "q27": """
        SELECT i_item_id, s_state, grouping(s_state) AS g_state, avg(ss_quantity) AS agg1, avg(ss_list_price) AS agg2,
               avg(ss_coupon_amt) AS agg3, avg(ss_sales_price) AS agg4
        FROM store_sales, customer_demographics, date_dim, store, item
        WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk AND ss_cdemo_sk = cd_demo_sk
          AND cd_gender = 'M' AND d_year = 2002 AND s_state IN ('TN', 'GA', 'CA', 'TX')
        GROUP BY ROLLUP (i_item_id, s_state) ORDER BY i_item_id, s_state LIMIT 100""",
    "q28": """
        SELECT * FROM
            (SELECT avg(ss_list_price) AS b1_lp, count(ss_list_price) AS b1_cnt, count(DISTINCT ss_list_price) AS b1_cntd FROM store_sales
             WHERE ss_quantity BETWEEN 0 AND 20 AND (ss_list_price BETWEEN 8 AND 80 OR ss_coupon_amt BETWEEN 45 AND 145)) b1,
            (SELECT avg(ss_list_price) AS b2_lp, count(ss_list_price) AS b2_cnt, count(DISTINCT ss_list_price) AS b2_cntd FROM store_sales
             WHERE ss_quantity BETWEEN 21 AND 40 AND (ss_list_price BETWEEN 90 AND 100 OR ss_wholesale_cost BETWEEN 31 AND 51)) b2
        LIMIT 100""",
    "q29": """
        SELECT i_item_id, s_store_id, sum(ss_quantity) AS store_sales_quantity, sum(sr_return_quantity) AS store_returns_quantity,
               sum(cs_quantity) AS catalog_sales_quantity
        FROM store_sales, store_returns, catalog_sales, date_dim d1, date_dim d2, date_dim d3, store, item
        WHERE d1.d_moy >= 4 AND d1.d_date_sk = ss_sold_date_sk AND i_item_sk = ss_item_sk AND s_store_sk = ss_store_sk
          AND ss_customer_sk = sr_customer_sk AND ss_item_sk = sr_item_sk AND sr_returned_date_sk = d2.d_date_sk AND d2.d_moy BETWEEN 1 AND 4 + 6
          AND sr_customer_sk = cs_bill_customer_sk AND sr_item_sk = cs_item_sk AND cs_sold_date_sk = d3.d_date_sk AND d3.d_year IN (1999, 2000, 2001)
        GROUP BY i_item_id, s_store_id ORDER BY i_item_id, s_store_id LIMIT 100""",
    "q30": """
        WITH customer_total_return AS (
            SELECT wr_returning_customer_sk AS ctr_customer_sk, ca_state AS ctr_state, sum(wr_return_amt) AS ctr_total_return
            FROM web_returns, date_dim, customer_address WHERE wr_returned_date_sk = d_date_sk AND d_year = 2002 AND wr_returning_addr_sk = ca_address_sk
            GROUP BY wr_returning_customer_sk, ca_state)
        SELECT c_customer_id, c_salutation, c_first_name, ctr_total_return
        FROM customer_total_return ctr1, customer_address, customer
        WHERE ctr1.ctr_total_return > (SELECT avg(ctr_total_return) * 1.2 FROM customer_total_return ctr2 WHERE ctr1.ctr_state = ctr2.ctr_state)
          AND ca_address_sk = c_current_addr_sk AND ctr1.ctr_customer_sk = c_customer_sk
        ORDER BY c_customer_id, c_salutation, c_first_name, ctr_total_return LIMIT 100""",
    "q31": """
        WITH ss AS (SELECT ca_county, d_qoy, d_year, sum(ss_ext_sales_price) AS store_sales FROM store_sales, date_dim, customer_address
                    WHERE ss_sold_date_sk = d_date_sk AND ss_addr_sk = ca_address_sk GROUP BY ca_county, d_qoy, d_year),
             ws AS (SELECT ca_county, d_qoy, d_year, sum(ws_ext_sales_price) AS web_sales FROM web_sales, date_dim, customer_address
                    WHERE ws_sold_date_sk = d_date_sk AND ws_bill_addr_sk = ca_address_sk GROUP BY ca_county, d_qoy, d_year)
        SELECT ss1.ca_county, ss1.d_year, ws2.web_sales / ws1.web_sales AS web_q1_q2, ss2.store_sales / ss1.store_sales AS store_q1_q2
        FROM ss ss1, ss ss2, ws ws1, ws ws2
        WHERE ss1.d_qoy = 1 AND ss1.d_year = 2000 AND ss1.ca_county = ss2.ca_county AND ss2.d_qoy = 2 AND ss2.d_year = 2000
          AND ss1.ca_county = ws1.ca_county AND ws1.d_qoy = 1 AND ws1.d_year = 2000 AND ws1.ca_county = ws2.ca_county AND ws2.d_qoy = 2 AND ws2.d_year = 2000
        ORDER BY ss1.ca_county""",
    "q32": """
        SELECT sum(cs_ext_discount_amt) AS excess_discount
        FROM catalog_sales, item, date_dim
        WHERE i_manufact_id = 1 AND i_item_sk = cs_item_sk AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL 300 DAYS
          AND d_date_sk = cs_sold_date_sk
          AND cs_ext_discount_amt > (SELECT 1.3 * avg(cs_ext_discount_amt) FROM catalog_sales, date_dim
                                     WHERE cs_item_sk = i_item_sk AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL 300 DAYS
                                       AND d_date_sk = cs_sold_date_sk)
        LIMIT 100""",
    "q33": """
        WITH ss AS (SELECT i_manufact_id, sum(ss_ext_sales_price) AS total_sales FROM store_sales, date_dim, customer_address, item
                    WHERE i_manufact_id IN (SELECT i_manufact_id FROM item WHERE i_category = 'Electronics') AND ss_item_sk = i_item_sk
                      AND ss_sold_date_sk = d_date_sk AND d_year = 1998 AND ss_addr_sk = ca_address_sk AND ca_gmt_offset = -5 GROUP BY i_manufact_id),
             cs AS (SELECT i_manufact_id, sum(cs_ext_sales_price) AS total_sales FROM catalog_sales, date_dim, customer_address, item
                    WHERE i_manufact_id IN (SELECT i_manufact_id FROM item WHERE i_category = 'Electronics') AND cs_item_sk = i_item_sk
                      AND cs_sold_date_sk = d_date_sk AND d_year = 1998 AND cs_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5 GROUP BY i_manufact_id)
        SELECT i_manufact_id, sum(total_sales) AS total_sales FROM (SELECT * FROM ss UNION ALL SELECT * FROM cs) tmp1
        GROUP BY i_manufact_id ORDER BY total_sales, i_manufact_id LIMIT 100""",
    "q34": """
        SELECT c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ss_ticket_number, cnt
        FROM (SELECT ss_ticket_number, ss_customer_sk, count(*) AS cnt FROM store_sales, date_dim, store, household_demographics
              WHERE store_sales.ss_sold_date_sk = date_dim.d_date_sk AND store_sales.ss_store_sk = store.s_store_sk AND store_sales.ss_hdemo_sk = household_demographics.hd_demo_sk
                AND (date_dim.d_dom BETWEEN 1 AND 9 OR date_dim.d_dom BETWEEN 25 AND 28)
                AND (household_demographics.hd_buy_potential = '>10000' OR household_demographics.hd_buy_potential = 'unknown')
                AND household_demographics.hd_vehicle_count > 0
                AND (CASE WHEN household_demographics.hd_vehicle_count > 0 THEN household_demographics.hd_dep_count / household_demographics.hd_vehicle_count ELSE NULL END) > 0.2
                AND date_dim.d_year IN (1999, 2000, 2001)
              GROUP BY ss_ticket_number, ss_customer_sk) dn, customer
        WHERE ss_customer_sk = c_customer_sk AND cnt BETWEEN 1 AND 20
        ORDER BY c_last_name, c_first_name, c_salutation, c_preferred_cust_flag DESC, ss_ticket_number""",
    "q35": """
        SELECT ca_state, cd_gender, cd_marital_status, cd_dep_count, count(*) AS cnt1, min(cd_dep_count) AS a, max(cd_dep_count) AS b, avg(cd_dep_count) AS c
        FROM customer c, customer_address ca, customer_demographics
        WHERE c.c_current_addr_sk = ca.ca_address_sk AND cd_demo_sk = c.c_current_cdemo_sk
          AND EXISTS (SELECT * FROM store_sales, date_dim WHERE c.c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2002 AND d_qoy < 4)
          AND (EXISTS (SELECT * FROM web_sales, date_dim WHERE c.c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2002 AND d_qoy < 4)
               OR EXISTS (SELECT * FROM catalog_sales, date_dim WHERE c.c_customer_sk = cs_ship_customer_sk AND cs_sold_date_sk = d_date_sk AND d_year = 2002 AND d_qoy < 4))
        GROUP BY ca_state, cd_gender, cd_marital_status, cd_dep_count
        ORDER BY ca_state, cd_gender, cd_marital_status, cd_dep_count LIMIT 100""",
    "q36": """
        SELECT sum(ss_net_profit) / sum(ss_ext_sales_price) AS gross_margin, i_category, i_class, grouping(i_category) + grouping(i_class) AS lochierarchy,
               rank() OVER (PARTITION BY grouping(i_category) + grouping(i_class), CASE WHEN grouping(i_class) = 0 THEN i_category END
                            ORDER BY sum(ss_net_profit) / sum(ss_ext_sales_price) ASC) AS rank_within_parent
        FROM store_sales, date_dim d1, item, store
        WHERE d1.d_year = 2001 AND d1.d_date_sk = ss_sold_date_sk AND i_item_sk = ss_item_sk AND s_store_sk = ss_store_sk
        GROUP BY ROLLUP (i_category, i_class)
        ORDER BY lochierarchy DESC, CASE WHEN lochierarchy = 0 THEN i_category END, rank_within_parent LIMIT 100""",
    "q37": """
        SELECT i_item_id, i_item_desc, i_current_price
        FROM item, inventory, date_dim, catalog_sales
        WHERE i_current_price BETWEEN 20 AND 20 + 150 AND inv_item_sk = i_item_sk AND d_date_sk = inv_date_sk
          AND d_date BETWEEN DATE '2000-02-01' AND DATE '2000-02-01' + INTERVAL 200 DAYS AND i_manufact_id IN (0, 1)
          AND inv_quantity_on_hand BETWEEN 10 AND 90 AND cs_item_sk = i_item_sk
        GROUP BY i_item_id, i_item_desc, i_current_price ORDER BY i_item_id LIMIT 100""",
    "q38": """
        SELECT count(*) AS n FROM (
            SELECT DISTINCT c_last_name, c_first_name, d_date FROM store_sales, date_dim, customer
            WHERE store_sales.ss_sold_date_sk = date_dim.d_date_sk AND store_sales.ss_customer_sk = customer.c_customer_sk AND d_month_seq BETWEEN 1180 AND 1220
            INTERSECT
            SELECT DISTINCT c_last_name, c_first_name, d_date FROM catalog_sales, date_dim, customer
            WHERE catalog_sales.cs_sold_date_sk = date_dim.d_date_sk AND catalog_sales.cs_bill_customer_sk = customer.c_customer_sk AND d_month_seq BETWEEN 1180 AND 1220) hot_cust
        LIMIT 100""",
    "q39": """
        WITH inv AS (
            SELECT w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy, stdev, mean, CASE mean WHEN 0 THEN NULL ELSE stdev / mean END AS cov
            FROM (SELECT w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy, stddev_samp(inv_quantity_on_hand) AS stdev, avg(inv_quantity_on_hand) AS mean
                  FROM inventory, item, warehouse, date_dim
                  WHERE inv_item_sk = i_item_sk AND inv_warehouse_sk = w_warehouse_sk AND inv_date_sk = d_date_sk
                  GROUP BY w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy) foo
            WHERE CASE mean WHEN 0 THEN 0 ELSE stdev / mean END > 0.1)
        SELECT inv1.w_warehouse_sk AS wsk1, inv1.i_item_sk AS isk1, inv1.d_moy AS moy1, inv1.mean AS mean1, inv2.d_moy AS moy2, inv2.mean AS mean2
        FROM inv inv1, inv inv2
        WHERE inv1.i_item_sk = inv2.i_item_sk AND inv1.w_warehouse_sk = inv2.w_warehouse_sk AND inv2.d_moy = inv1.d_moy + 1
        ORDER BY inv1.w_warehouse_sk, inv1.i_item_sk, inv1.d_moy, inv1.mean, inv2.d_moy, inv2.mean""",
    "q40": """
        SELECT w_state, i_item_id,
               sum(CASE WHEN d_date < DATE '2000-03-11' THEN cs_sales_price - coalesce(cr_refunded_cash, 0) ELSE 0 END) AS sales_before,
               sum(CASE WHEN d_date >= DATE '2000-03-11' THEN cs_sales_price - coalesce(cr_refunded_cash, 0) ELSE 0 END) AS sales_after
        FROM catalog_sales LEFT OUTER JOIN catalog_returns ON (cs_order_number = cr_order_number AND cs_item_sk = cr_item_sk), warehouse, item, date_dim
        WHERE i_current_price BETWEEN 0.99 AND 100 AND i_item_sk = cs_item_sk AND cs_warehouse_sk = w_warehouse_sk AND cs_sold_date_sk = d_date_sk
          AND d_date BETWEEN DATE '2000-03-11' - INTERVAL 300 DAYS AND DATE '2000-03-11' + INTERVAL 300 DAYS
        GROUP BY w_state, i_item_id ORDER BY w_state, i_item_id LIMIT 100""",
    "q41": """
        SELECT DISTINCT i_product_name FROM item i1
        WHERE i_manufact_id BETWEEN 0 AND 2
          AND (SELECT count(*) AS item_cnt FROM item
               WHERE (i_manufact = i1.i_manufact AND ((i_category = 'Women' AND i_color IN ('powder', 'pale') AND i_units IN ('Ounce', 'Oz'))
                                                      OR (i_category = 'Books' AND i_size IN ('medium', 'extra large'))))
                  OR (i_manufact = i1.i_manufact AND i_category = 'Home' AND i_color IN ('slate', 'chiffon'))) > 0
        ORDER BY i_product_name LIMIT 100""",
    "q42": """
        SELECT dt.d_year, item.i_category_id, item.i_category, sum(ss_ext_sales_price) AS s
        FROM date_dim dt, store_sales, item
        WHERE dt.d_date_sk = store_sales.ss_sold_date_sk AND store_sales.ss_item_sk = item.i_item_sk AND item.i_manager_id = 1 AND dt.d_moy = 11 AND dt.d_year = 2000
        GROUP BY dt.d_year, item.i_category_id, item.i_category
        ORDER BY s DESC, dt.d_year, item.i_category_id, item.i_category LIMIT 100""",
    "q43": """
        SELECT s_store_name, s_store_id, sum(CASE WHEN d_day_name = 'Sunday' THEN ss_sales_price ELSE NULL END) AS sun_sales,
               sum(CASE WHEN d_day_name = 'Monday' THEN ss_sales_price ELSE NULL END) AS mon_sales,
               sum(CASE WHEN d_day_name = 'Saturday' THEN ss_sales_price ELSE NULL END) AS sat_sales
        FROM date_dim, store_sales, store
        WHERE d_date_sk = ss_sold_date_sk AND s_store_sk = ss_store_sk AND s_gmt_offset = -5 AND d_year = 2000
        GROUP BY s_store_name, s_store_id ORDER BY s_store_name, s_store_id, sun_sales, mon_sales, sat_sales LIMIT 100""",
    "q44": """
        SELECT asceding.rnk, i1.i_product_name AS best_performing, i2.i_product_name AS worst_performing
        FROM (SELECT * FROM (SELECT item_sk, rank() OVER (ORDER BY rank_col ASC) AS rnk
                             FROM (SELECT ss_item_sk AS item_sk, avg(ss_net_profit) AS rank_col FROM store_sales ss1 WHERE ss_store_sk = 4 GROUP BY ss_item_sk
                                   HAVING avg(ss_net_profit) > 0.5 * (SELECT avg(ss_net_profit) AS rank_col FROM store_sales WHERE ss_store_sk = 4 GROUP BY ss_store_sk)) v1) v11
              WHERE rnk < 11) asceding,
             (SELECT * FROM (SELECT item_sk, rank() OVER (ORDER BY rank_col DESC) AS rnk
                             FROM (SELECT ss_item_sk AS item_sk, avg(ss_net_profit) AS rank_col FROM store_sales ss1 WHERE ss_store_sk = 4 GROUP BY ss_item_sk
                                   HAVING avg(ss_net_profit) > 0.5 * (SELECT avg(ss_net_profit) AS rank_col FROM store_sales WHERE ss_store_sk = 4 GROUP BY ss_store_sk)) v2) v21
              WHERE rnk < 11) descending, item i1, item i2
        WHERE asceding.rnk = descending.rnk AND i1.i_item_sk = asceding.item_sk AND i2.i_item_sk = descending.item_sk
        ORDER BY asceding.rnk LIMIT 100""",
    "q45": """
        SELECT ca_zip, ca_city, sum(ws_sales_price) AS total
        FROM web_sales, customer, customer_address, date_dim, item
        WHERE ws_bill_customer_sk = c_customer_sk AND c_current_addr_sk = ca_address_sk AND ws_item_sk = i_item_sk
          AND (substr(ca_zip, 1, 5) IN ('85669', '86197') OR i_item_id IN (SELECT i_item_id FROM item WHERE i_item_sk IN (2, 3, 5, 7, 11, 13)))
          AND ws_sold_date_sk = d_date_sk AND d_qoy = 2 AND d_year = 2001
        GROUP BY ca_zip, ca_city ORDER BY ca_zip, ca_city LIMIT 100""",
    "q46": """
        SELECT c_last_name, c_first_name, ca_city, bought_city, ss_ticket_number, amt, profit
        FROM (SELECT ss_ticket_number, ss_customer_sk, ca_city AS bought_city, sum(ss_coupon_amt) AS amt, sum(ss_net_profit) AS profit
              FROM store_sales, date_dim, store, household_demographics, customer_address
              WHERE store_sales.ss_sold_date_sk = date_dim.d_date_sk AND store_sales.ss_store_sk = store.s_store_sk
                AND store_sales.ss_hdemo_sk = household_demographics.hd_demo_sk AND store_sales.ss_addr_sk = customer_address.ca_address_sk
                AND (household_demographics.hd_dep_count = 3 OR household_demographics.hd_vehicle_count = 1)
                AND date_dim.d_dow IN (5, 6, 0) AND date_dim.d_year IN (1999, 2000) AND store.s_city IN ('Fairview', 'Midway')
              GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, ca_city) dn, customer, customer_address current_addr
        WHERE ss_customer_sk = c_customer_sk AND customer.c_current_addr_sk = current_addr.ca_address_sk AND current_addr.ca_city <> bought_city
        ORDER BY c_last_name, c_first_name, ca_city, bought_city, ss_ticket_number LIMIT 100""",
    "q47": """
        WITH v1 AS (
            SELECT i_category, i_brand, s_store_name, s_company_name, d_year, d_moy, sum(ss_sales_price) AS sum_sales,
                   avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name, d_year) AS avg_monthly_sales,
                   rank() OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name ORDER BY d_year, d_moy) AS rn
            FROM item, store_sales, date_dim, store
            WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND d_year IN (1999, 2000)
            GROUP BY i_category, i_brand, s_store_name, s_company_name, d_year, d_moy),
        v2 AS (
            SELECT v1.i_category, v1.i_brand, v1.d_year, v1.d_moy, v1.avg_monthly_sales, v1.sum_sales, v1_lag.sum_sales AS psum, v1_lead.sum_sales AS nsum
            FROM v1, v1 v1_lag, v1 v1_lead
            WHERE v1.i_category = v1_lag.i_category AND v1.i_category = v1_lead.i_category AND v1.i_brand = v1_lag.i_brand AND v1.i_brand = v1_lead.i_brand
              AND v1.s_store_name = v1_lag.s_store_name AND v1.s_store_name = v1_lead.s_store_name AND v1.s_company_name = v1_lag.s_company_name
              AND v1.s_company_name = v1_lead.s_company_name AND v1.rn = v1_lag.rn + 1 AND v1.rn = v1_lead.rn - 1)
        SELECT * FROM v2
        WHERE d_year = 1999 AND avg_monthly_sales > 0 AND CASE WHEN avg_monthly_sales > 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales ELSE NULL END > 0.1
        ORDER BY sum_sales - avg_monthly_sales, i_category, i_brand, d_year, d_moy LIMIT 100""",
    "q48": """
        SELECT sum(ss_quantity) AS total
        FROM store_sales, store, customer_demographics, customer_address, date_dim
        WHERE s_store_sk = ss_store_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2000
          AND ((cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'M' AND ss_sales_price BETWEEN 10.00 AND 150.00)
               OR (cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'D' AND ss_sales_price BETWEEN 50.00 AND 100.00))
          AND ((ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('CA', 'TX') AND ss_net_profit BETWEEN 0 AND 2000)
               OR (ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('TN', 'GA') AND ss_net_profit BETWEEN 15 AND 3000))""",
    "q49": """
        SELECT channel, item, return_ratio, return_rank, currency_rank FROM (
            SELECT 'web' AS channel, web.item, web.return_ratio, web.return_rank, web.currency_rank
            FROM (SELECT item, return_ratio, currency_ratio, rank() OVER (ORDER BY return_ratio) AS return_rank, rank() OVER (ORDER BY currency_ratio) AS currency_rank
                  FROM (SELECT ws.ws_item_sk AS item, CAST(sum(coalesce(wr.wr_return_quantity, 0)) AS DECIMAL(15,4)) / CAST(sum(coalesce(ws.ws_quantity, 0)) AS DECIMAL(15,4)) AS return_ratio,
                               CAST(sum(coalesce(wr.wr_return_amt, 0)) AS DECIMAL(15,4)) / CAST(sum(coalesce(ws.ws_net_paid, 0)) AS DECIMAL(15,4)) AS currency_ratio
                        FROM web_sales ws LEFT OUTER JOIN web_returns wr ON (ws.ws_order_number = wr.wr_order_number), date_dim
                        WHERE ws.ws_net_profit > 1 AND ws.ws_quantity > 0 AND ws_sold_date_sk = d_date_sk GROUP BY ws.ws_item_sk) in_web) web
            WHERE web.return_rank <= 10 OR web.currency_rank <= 10
            UNION
            SELECT 'store', store.item, store.return_ratio, store.return_rank, store.currency_rank
            FROM (SELECT item, return_ratio, currency_ratio, rank() OVER (ORDER BY return_ratio) AS return_rank, rank() OVER (ORDER BY currency_ratio) AS currency_rank
                  FROM (SELECT sts.ss_item_sk AS item, CAST(sum(coalesce(sr.sr_return_quantity, 0)) AS DECIMAL(15,4)) / CAST(sum(coalesce(sts.ss_quantity, 0)) AS DECIMAL(15,4)) AS return_ratio,
                               CAST(sum(coalesce(sr.sr_return_amt, 0)) AS DECIMAL(15,4)) / CAST(sum(coalesce(sts.ss_net_paid, 0)) AS DECIMAL(15,4)) AS currency_ratio
                        FROM store_sales sts LEFT OUTER JOIN store_returns sr ON (sts.ss_ticket_number = sr.sr_ticket_number), date_dim
                        WHERE sts.ss_net_profit > 1 AND sts.ss_quantity > 0 AND ss_sold_date_sk = d_date_sk GROUP BY sts.ss_item_sk) in_store) store
            WHERE store.return_rank <= 10 OR store.currency_rank <= 10) t
        ORDER BY 1, 4, 5, 2 LIMIT 100""",
    "q50": """
        SELECT s_store_name, s_company_id, s_street_name, s_city,
               sum(CASE WHEN (sr_returned_date_sk - ss_sold_date_sk <= 30) THEN 1 ELSE 0 END) AS d30,
               sum(CASE WHEN (sr_returned_date_sk - ss_sold_date_sk > 30) AND (sr_returned_date_sk - ss_sold_date_sk <= 60) THEN 1 ELSE 0 END) AS d60,
               sum(CASE WHEN (sr_returned_date_sk - ss_sold_date_sk > 60) THEN 1 ELSE 0 END) AS more
        FROM store_sales, store_returns, store, date_dim d1, date_dim d2
        WHERE d2.d_year = 2001 AND ss_ticket_number = sr_ticket_number AND ss_sold_date_sk = d1.d_date_sk
          AND sr_returned_date_sk = d2.d_date_sk AND ss_store_sk = s_store_sk
        GROUP BY s_store_name, s_company_id, s_street_name, s_city
        ORDER BY s_store_name, s_company_id, s_street_name, s_city LIMIT 100""",
}
