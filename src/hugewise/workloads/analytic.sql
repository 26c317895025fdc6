\set query (:query + 1) % 5
\if :query = 0
SELECT flag, count(*), sum(quantity), sum(price), sum(price * (100 - discount)), avg(price) FROM analytic_items WHERE shipped <= DATE '1998-09-02' GROUP BY flag ORDER BY flag;
\elif :query = 1
SELECT o.id, sum(i.price * (100 - i.discount)) AS revenue, o.day FROM analytic_customers c JOIN analytic_orders o ON o.customer = c.id JOIN analytic_items i ON i.order_id = o.id WHERE c.segment = 1 AND o.day < DATE '1995-03-15' AND i.shipped > DATE '1995-03-15' GROUP BY o.id, o.day ORDER BY revenue DESC, o.id LIMIT 10;
\elif :query = 2
SELECT o.priority, count(*) FROM analytic_orders o WHERE o.day >= DATE '1993-07-01' AND o.day < DATE '1993-10-01' AND EXISTS (SELECT FROM analytic_items i WHERE i.order_id = o.id AND i.shipped > o.day + 60) GROUP BY o.priority ORDER BY o.priority;
\elif :query = 3
SELECT sum(price * discount) FROM analytic_items WHERE shipped >= DATE '1994-01-01' AND shipped < DATE '1995-01-01' AND discount BETWEEN 5 AND 7 AND quantity < 24;
\elif :query = 4
SELECT sum(CASE WHEN p.kind < 25 THEN i.price * (100 - i.discount) END), sum(i.price * (100 - i.discount)) FROM analytic_items i JOIN analytic_parts p ON p.id = i.part WHERE i.shipped >= DATE '1995-09-01' AND i.shipped < DATE '1995-10-01';
\endif
