-- The nine tables of a wholesale supplier, as in TPC-C, and their contents for
-- :warehouses warehouses.  Column names are TPC-C's.  Names, addresses and data
-- are filler of about the right width; there is no think time and no terminal,
-- so figures are not TPC-C results and not to be called so.

CREATE TABLE warehouse (
	w_id int PRIMARY KEY, w_name text, w_street text, w_city text, w_tax numeric(4,4), w_ytd numeric(12,2)
) WITH (fillfactor = 50);
CREATE TABLE district (
	d_w_id int, d_id int, d_name text, d_street text, d_city text, d_tax numeric(4,4), d_ytd numeric(12,2),
	d_next_o_id int, PRIMARY KEY (d_w_id, d_id)
) WITH (fillfactor = 50);
CREATE TABLE customer (
	c_w_id int, c_d_id int, c_id int, c_first text, c_middle char(2), c_last text, c_street text, c_city text,
	c_phone text, c_since timestamptz, c_credit char(2), c_credit_lim numeric(12,2), c_discount numeric(4,4),
	c_balance numeric(12,2), c_ytd_payment numeric(12,2), c_payment_cnt int, c_delivery_cnt int, c_data text,
	PRIMARY KEY (c_w_id, c_d_id, c_id)
);
CREATE INDEX ON customer (c_w_id, c_d_id, c_last, c_first);
-- no key, as in TPC-C: rows are only inserted
CREATE TABLE history (
	h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date timestamptz, h_amount numeric(6,2), h_data text
);
CREATE TABLE orders (
	o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamptz, o_carrier_id int, o_ol_cnt int, o_all_local int,
	PRIMARY KEY (o_w_id, o_d_id, o_id)
);
CREATE INDEX ON orders (o_w_id, o_d_id, o_c_id, o_id);
CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (
	ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int, ol_delivery_d timestamptz,
	ol_quantity int, ol_amount numeric(6,2), ol_dist_info char(24), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)
);
CREATE TABLE item (i_id int PRIMARY KEY, i_im_id int, i_name text, i_price numeric(5,2), i_data text);
CREATE TABLE stock (
	s_w_id int, s_i_id int, s_quantity int, s_dist text, s_ytd int, s_order_cnt int, s_remote_cnt int, s_data text,
	PRIMARY KEY (s_w_id, s_i_id)
) WITH (fillfactor = 90);

INSERT INTO item SELECT i, i % 10000 + 1, 'item ' || i, 1 + i % 100, md5(i::text) FROM generate_series(1, 100000) i;
INSERT INTO warehouse SELECT w, 'w' || w, md5(w::text), 'city', 0.1, 300000 FROM generate_series(1, :warehouses) w;
INSERT INTO district SELECT w, d, 'd' || d, md5(d::text), 'city', 0.1, 30000, 3001
	FROM generate_series(1, :warehouses) w, generate_series(1, 10) d;
INSERT INTO stock SELECT w, i, 10 + i % 91, repeat(md5(i::text), 7), 0, 0, 0, md5(w::text)
	FROM generate_series(1, :warehouses) w, generate_series(1, 100000) i;
INSERT INTO customer SELECT w, d, c, md5(c::text), 'OE', 'name' || c % 1000, md5(d::text), 'city', '0123456789012345', now(),
		CASE c % 10 WHEN 0 THEN 'BC' ELSE 'GC' END, 50000, 0.1, -10, 10, 1, 0, repeat(md5(c::text), 10)
	FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) c;
INSERT INTO history SELECT c_id, c_d_id, c_w_id, c_d_id, c_w_id, now(), 10, md5(c_id::text) FROM customer;
INSERT INTO orders SELECT w, d, o, 1 + (o * 7919) % 3000, now(), CASE WHEN o < 2101 THEN 1 + o % 10 END, 5 + o % 11, 1
	FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) o;
INSERT INTO order_line SELECT o_w_id, o_d_id, o_id, n, 1 + (o_id * 31 + n * 977) % 100000, o_w_id,
		CASE WHEN o_id < 2101 THEN now() END, 5, CASE WHEN o_id < 2101 THEN 0 ELSE (o_id % 9999) / 10.0 END, left(md5(n::text), 24)
	FROM orders, generate_series(1, o_ol_cnt) n;
INSERT INTO new_order SELECT o_w_id, o_d_id, o_id FROM orders WHERE o_id >= 2101;
