-- An order of 5 to 15 items, one in a hundred from another warehouse; one order
-- in a hundred names an item that does not exist and is rolled back.
\set w random(1, :warehouses)
\set d random(1, 10)
\set c random(1, 3000)
\set n random(5, 15)
\set bad random(1, 100)
BEGIN;
SELECT c_discount, c_last, c_credit, w_tax FROM customer JOIN warehouse ON w_id = c_w_id
	WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = :w AND d_id = :d RETURNING d_next_o_id - 1 AS o \gset
INSERT INTO orders VALUES (:w, :d, :o, :c, now(), NULL, :n, 1);
INSERT INTO new_order VALUES (:w, :d, :o);
WITH line AS (
	SELECT n, 1 + (random() * 99999)::int AS i, 1 + (random() * 9)::int AS quantity,
		CASE WHEN random() < 0.01 THEN 1 + (random() * (:warehouses - 1))::int ELSE :w END AS supply
	FROM generate_series(1, :n) n
), wanted AS (
	-- in the order of the key, against deadlocks; an item twice is taken once
	SELECT s_w_id, s_i_id, sum(quantity)::int AS quantity, bool_or(s_w_id <> :w) AS remote
	FROM line JOIN stock ON s_w_id = supply AND s_i_id = i GROUP BY 1, 2
), locked AS (
	SELECT s.s_w_id, s.s_i_id FROM stock s JOIN wanted w USING (s_w_id, s_i_id) ORDER BY 1, 2 FOR UPDATE OF s
), taken AS (
	UPDATE stock s SET s_quantity = CASE WHEN s_quantity >= w.quantity + 10 THEN s_quantity - w.quantity ELSE s_quantity - w.quantity + 91 END,
		s_ytd = s_ytd + w.quantity, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + w.remote::int
	FROM wanted w JOIN locked USING (s_w_id, s_i_id) WHERE s.s_w_id = w.s_w_id AND s.s_i_id = w.s_i_id
)
INSERT INTO order_line SELECT :w, :d, :o, n, i, supply, NULL, quantity, quantity * i_price, left(md5(n::text), 24)
	FROM line JOIN item ON i_id = i;
\if :bad = 1
ROLLBACK;
\else
COMMIT;
\endif
