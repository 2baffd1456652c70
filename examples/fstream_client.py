#!/usr/bin/python3
"""Print transactions of a pgparrep slot as they commit, one JSON object per line.

Usage: fstream_client.py DSN SLOT PUBLICATION [END_LSN]

Stops at END_LSN, else runs until it is interrupted.  What the bytes mean is in
docs/protocol.md.  For slots without two-phase decoding.  Needs psycopg2 (Debian:
python3-psycopg2).
"""
import io, json, select, struct, sys
import psycopg2, psycopg2.extras

relations = {}  # OID: (name, column names); state of the stream
transactions = {}  # xid: list of (subxid, change)
current_subxact = {}  # xid: subxid named by the last X


def integer(body, size):
    return int.from_bytes(body.read(size), 'big')


def string(body):
    text, _, rest = body.read().partition(b'\0')
    body.seek(-len(rest), io.SEEK_CUR)
    return text.decode()


def read_relation(body):
    oid, schema, name, _ = integer(body, 4), string(body), string(body), body.read(1)
    columns = []
    for _ in range(integer(body, 2)):
        body.read(1)  # flags
        columns.append(string(body))
        body.read(8)  # type and modifier
    relations[oid] = (f'{schema or "pg_catalog"}.{name}', columns)


def read_tuple(columns, body):
    """Values as text; those that an update left out of line are missing."""
    row = {}
    body.read(2)  # number of columns
    for column in columns:
        kind = body.read(1)
        if kind != b'u':
            row[column] = None if kind == b'n' else body.read(integer(body, 4)).decode()
    return row


def read_change(kind, body):
    if kind == 'M':
        body.read(9)  # flags and position
        return {'message': string(body), 'content': body.read(integer(body, 4)).decode(errors='replace')}
    if kind == 'T':
        count, _ = integer(body, 4), body.read(1)
        return {'truncate': [relations[integer(body, 4)][0] for _ in range(count)]}
    name, columns = relations[integer(body, 4)]
    change = {{'I': 'insert', 'U': 'update', 'D': 'delete'}[kind]: name}
    while part := body.read(1):  # N: new tuple; K, O: old key, old row
        change['new' if part == b'N' else 'old'] = read_tuple(columns, body)
    return change


def finish(xid):
    current_subxact.pop(xid, None)
    return [change for _, change in transactions.pop(xid, [])]


def frame(xid, kind, body):
    if kind == 'R':
        read_relation(body)
    elif kind == 'X':
        current_subxact[xid] = integer(body, 4)
    elif kind == 'A':
        subxid = integer(body, 4)
        if subxid == xid:
            finish(xid)
        else:
            transactions[xid] = [c for c in transactions.get(xid, []) if c[0] != subxid]
    elif kind == 'C':
        _, end = body.read(9), integer(body, 8)
        print(json.dumps({'xid': xid, 'end': f'{end >> 32:X}/{end & 0xFFFFFFFF:X}', 'changes': finish(xid)}), flush=True)
    elif kind == 'M' and xid == 0:
        print(json.dumps(read_change(kind, body)), flush=True)
    elif kind in 'IUDTM':
        change = (current_subxact.get(xid, xid), read_change(kind, body))
        transactions.setdefault(xid, []).append(change)


def main(dsn, slot, publication, end_lsn='FFFFFFFF/FFFFFFFF'):
    high, low = end_lsn.split('/')
    connection = psycopg2.connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    cursor = connection.cursor()
    cursor.start_replication(slot_name=slot, options={
        'proto_version': '1', 'publication_names': publication, 'streaming': 'extreme', 'messages': 'true'})
    while cursor.wal_end < int(high, 16) << 32 | int(low, 16):
        message = cursor.read_message()
        if message is None:
            cursor.send_feedback()
            select.select([cursor], [], [], 1)
            continue
        frames = io.BytesIO(message.payload)
        while frames.read(1):  # F
            xid, size, kind = struct.unpack('!IIc', frames.read(9))
            frame(xid, kind.decode(), io.BytesIO(frames.read(size - 1)))
        cursor.send_feedback(flush_lsn=message.data_start)
    cursor.send_feedback(flush_lsn=cursor.wal_end, force=True)


if __name__ == '__main__':
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
