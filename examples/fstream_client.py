#!/usr/bin/python3
"""Print transactions of a pgparrep slot as they commit, one JSON object per line.

Usage: fstream_client.py DSN SLOT PUBLICATION [END_LSN]

Stops at END_LSN, else runs until it is interrupted.  What the bytes mean is in
docs/protocol.md.  Needs psycopg2 (Debian: python3-psycopg2).
"""
import json, select, struct, sys
import psycopg2, psycopg2.extras

relations = {}  # OID: (name, column names); state of the stream
open_transactions = {}  # xid: list of (subxid, change)
current_subxact = {}  # xid: subxid named by the last X


def string(data, pos):
    end = data.index(b'\0', pos)
    return data[pos:end].decode(), end + 1


def read_relation(body):
    oid, = struct.unpack_from('!I', body)
    schema, pos = string(body, 4)
    name, pos = string(body, pos)
    count, = struct.unpack_from('!H', body, pos + 1)  # behind the replica identity
    columns, pos = [], pos + 3
    for _ in range(count):
        column, pos = string(body, pos + 1)  # behind the flags
        columns.append(column)
        pos += 8  # type and modifier
    relations[oid] = ((schema or 'pg_catalog') + '.' + name, columns)


def read_tuple(columns, body, pos):
    """Values as text; those that an update left out of line are missing."""
    row, pos = {}, pos + 2
    for column in columns:
        kind, pos = body[pos:pos + 1], pos + 1
        if kind == b'n':
            row[column] = None
        elif kind == b't':
            size, = struct.unpack_from('!I', body, pos)
            row[column] = body[pos + 4:pos + 4 + size].decode()
            pos += 4 + size
    return row, pos


def read_change(kind, body):
    if kind == 'M':
        prefix, pos = string(body, 9)  # behind flags and position
        return {'message': prefix, 'content': body[pos + 4:].decode(errors='replace')}
    if kind == 'T':
        count, = struct.unpack_from('!I', body)
        return {'truncate': [relations[oid][0] for oid in struct.unpack_from('!%dI' % count, body, 5)]}
    name, columns = relations[struct.unpack_from('!I', body)[0]]
    change, pos = {{'I': 'insert', 'U': 'update', 'D': 'delete'}[kind]: name}, 4
    while pos < len(body):  # N: new tuple; K, O: old key, old row
        part = 'new' if body[pos:pos + 1] == b'N' else 'old'
        change[part], pos = read_tuple(columns, body, pos + 1)
    return change


def frame(xid, kind, body):
    if kind == 'R':
        read_relation(body)
    elif kind == 'X':
        current_subxact[xid], = struct.unpack('!I', body)
    elif kind == 'A':
        subxid, = struct.unpack_from('!I', body)
        if subxid == xid:
            open_transactions.pop(xid, None)
            current_subxact.pop(xid, None)
        else:
            open_transactions[xid] = [c for c in open_transactions.get(xid, []) if c[0] != subxid]
    elif kind == 'C':
        end, = struct.unpack_from('!Q', body, 9)
        current_subxact.pop(xid, None)
        changes = [change for _, change in open_transactions.pop(xid, [])]
        print(json.dumps({'xid': xid, 'end': '%X/%X' % (end >> 32, end & 0xFFFFFFFF), 'changes': changes}), flush=True)
    elif kind == 'M' and xid == 0:
        print(json.dumps(read_change(kind, body)), flush=True)
    elif kind in 'IUDTM':
        change = (current_subxact.get(xid, xid), read_change(kind, body))
        open_transactions.setdefault(xid, []).append(change)


def main(dsn, slot, publication, end_lsn=None):
    high, low = (end_lsn or 'FFFFFFFF/FFFFFFFF').split('/')
    end = int(high, 16) << 32 | int(low, 16)
    connection = psycopg2.connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    cursor = connection.cursor()
    cursor.start_replication(slot_name=slot, options={
        'proto_version': '1', 'publication_names': publication, 'streaming': 'extreme', 'messages': 'true'})
    while cursor.wal_end < end:
        message = cursor.read_message()
        if message is None:
            cursor.send_feedback()
            select.select([cursor], [], [], 1)
            continue
        pos = 0
        while pos < len(message.payload):
            xid, size = struct.unpack_from('!xII', message.payload, pos)
            body = message.payload[pos + 10:pos + 9 + size]
            frame(xid, chr(message.payload[pos + 9]), body)
            pos += 9 + size
        cursor.send_feedback(flush_lsn=message.data_start)
    cursor.send_feedback(flush_lsn=cursor.wal_end, force=True)


if __name__ == '__main__':
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
