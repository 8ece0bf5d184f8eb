-- Days with a revenue of more than 100. A view can read other views.
SELECT day, sum(total) AS total
FROM revenue
GROUP BY day
HAVING sum(total) > 100
