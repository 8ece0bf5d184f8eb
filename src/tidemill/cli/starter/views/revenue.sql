-- Revenue by region and day. Tidemill refuses this view if it cannot follow the changes of its tables.
-- tidemill: refresh = incremental
SELECT c.region, o.day, count(*) AS orders, sum(o.amount) AS total
FROM clean_orders o
JOIN customers c ON o.customer = c.id
GROUP BY c.region, o.day
