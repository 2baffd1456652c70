-- A customer, three of five times found by name, pays; 15 in a hundred are of
-- another warehouse.
\set w random(1, :warehouses)
\set d random(1, 10)
\set far random(1, 100)
\set cw random(1, :warehouses)
\set cd random(1, 10)
\if :far > 15
\set cw :w
\set cd :d
\endif
\set c random(1, 3000)
\set by_name random(1, 100)
\set amount random(100, 500000)
BEGIN;
UPDATE warehouse SET w_ytd = w_ytd + :amount / 100.0 WHERE w_id = :w;
UPDATE district SET d_ytd = d_ytd + :amount / 100.0 WHERE d_w_id = :w AND d_id = :d;
\if :by_name <= 60
SELECT (array_agg(c_id ORDER BY c_first))[(count(*) + 1) / 2] AS c FROM customer
	WHERE c_w_id = :cw AND c_d_id = :cd AND c_last = 'name' || :c % 1000 \gset
\endif
UPDATE customer SET c_balance = c_balance - :amount / 100.0, c_ytd_payment = c_ytd_payment + :amount / 100.0,
	c_payment_cnt = c_payment_cnt + 1,
	c_data = CASE c_credit WHEN 'BC' THEN left(:w || ' ' || :d || ' ' || :amount || ' ' || c_data, 500) ELSE c_data END
	WHERE c_w_id = :cw AND c_d_id = :cd AND c_id = :c;
INSERT INTO history VALUES (:c, :cd, :cw, :d, :w, now(), :amount / 100.0, 'payment');
COMMIT;
