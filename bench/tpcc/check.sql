-- What holds whenever no transaction is half there (TPC-C, clause 3.3.2, 1 to 4,
-- and that deliveries and balances agree).  Returns what does not.
SELECT 'w_ytd is not the sum of d_ytd, warehouse ' || w_id
	FROM warehouse WHERE w_ytd <> (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)
UNION ALL
SELECT format('d_next_o_id is not behind the last order, district %s/%s', d_w_id, d_id)
	FROM district WHERE d_next_o_id - 1 <> (SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)
	OR d_next_o_id - 1 < (SELECT max(no_o_id) FROM new_order WHERE no_w_id = d_w_id AND no_d_id = d_id)
UNION ALL
SELECT format('new_order has gaps, district %s/%s', no_w_id, no_d_id)
	FROM new_order GROUP BY no_w_id, no_d_id HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)
UNION ALL
SELECT format('order lines are missing, district %s/%s', d_w_id, d_id)
	FROM district WHERE (SELECT sum(o_ol_cnt) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)
		<> (SELECT count(*) FROM order_line WHERE ol_w_id = d_w_id AND ol_d_id = d_id)
UNION ALL
SELECT format('carrier and new_order disagree, order %s/%s/%s', o_w_id, o_d_id, o_id)
	FROM orders LEFT JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
	WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL);
