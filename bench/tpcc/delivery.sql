-- The oldest undelivered order of each district of a warehouse is delivered.
\set w random(1, :warehouses)
\set carrier random(1, 10)
BEGIN;
-- one delivery at a time, so that none is delivered twice
SELECT pg_advisory_xact_lock(:w);
WITH oldest AS (
	DELETE FROM new_order WHERE (no_w_id, no_d_id, no_o_id) IN
		(SELECT no_w_id, no_d_id, min(no_o_id) FROM new_order WHERE no_w_id = :w GROUP BY 1, 2)
	RETURNING no_d_id, no_o_id
), delivered AS (
	UPDATE orders SET o_carrier_id = :carrier FROM oldest WHERE o_w_id = :w AND o_d_id = no_d_id AND o_id = no_o_id
	RETURNING o_d_id, o_id, o_c_id
), lines AS (
	UPDATE order_line SET ol_delivery_d = now() FROM oldest WHERE ol_w_id = :w AND ol_d_id = no_d_id AND ol_o_id = no_o_id
	RETURNING ol_d_id, ol_amount
), sums AS (
	SELECT o_d_id, o_c_id, sum(ol_amount) AS amount FROM delivered JOIN lines ON ol_d_id = o_d_id GROUP BY 1, 2
)
UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1 FROM sums
	WHERE c_w_id = :w AND c_d_id = o_d_id AND c_id = o_c_id;
COMMIT;
