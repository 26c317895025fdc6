CREATE FUNCTION pick(key bigint, seed bigint, among bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT ((hashint8extended(key, seed) % among) + among) % among';
CREATE TABLE analytic_customers AS SELECT id, pick(id, 1, 5)::int AS segment, pick(id, 2, 25)::int AS nation, rpad('', 120, 'c') AS text FROM generate_series(1, {customers}) AS id;
CREATE TABLE analytic_parts AS SELECT id, pick(id, 3, 150)::int AS kind, pick(id, 4, 25)::int AS brand, rpad('', 90, 'p') AS text FROM generate_series(1, {parts}) AS id;
CREATE TABLE analytic_orders AS SELECT id, 1 + pick(id, 5, {customers}) AS customer, DATE '1992-01-01' + pick(id, 6, 2406)::int AS day, pick(id, 7, 5)::int AS priority, rpad('', 60, 'o') AS text FROM generate_series(1, {orders}) AS id;
CREATE TABLE analytic_items AS SELECT o.id AS order_id, n AS number, 1 + pick(o.id * 8 + n, 8, {parts}) AS part, 1 + pick(o.id * 8 + n, 9, 50)::int AS quantity, 90000 + pick(o.id * 8 + n, 10, 10000000) AS price, pick(o.id * 8 + n, 11, 11)::int AS discount, pick(o.id * 8 + n, 12, 3)::int AS flag, o.day + 1 + pick(o.id * 8 + n, 13, 121)::int AS shipped, rpad('', 40, 'i') AS text FROM analytic_orders o, generate_series(1, 4) AS n ORDER BY o.id, n;
ALTER TABLE analytic_customers ADD PRIMARY KEY (id);
ALTER TABLE analytic_parts ADD PRIMARY KEY (id);
ALTER TABLE analytic_orders ADD PRIMARY KEY (id);
ALTER TABLE analytic_items ADD PRIMARY KEY (order_id, number);
