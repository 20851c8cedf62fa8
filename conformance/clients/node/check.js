// The Node driver.
const assert = require('assert');
const driver = require('cassandra-driver');

const ROWS = 500;
const PAGE = 30;
const held = (name) => console.log(`check ${name}`);

async function main(addresses) {
  console.log(`version cassandra-driver ${driver.version} on Node ${process.version}`);
  const client = new driver.Client({ contactPoints: addresses, localDataCenter: 'dc1' });
  await client.connect();
  assert.equal(client.hosts.length, 3);
  await client.execute(
    "CREATE KEYSPACE nodejs WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}");
  await client.execute('CREATE TYPE nodejs.address (street text, zip int)');
  await client.execute(
    'CREATE TABLE nodejs.t (k int, c int, v text, l list<int>, m map<text, int>, s set<text>, ' +
    'u frozen<address>, PRIMARY KEY (k, c))');
  held('connect');
  const insert = 'INSERT INTO nodejs.t (k, c, v) VALUES (?, ?, ?)';
  const prepare = true;
  await Promise.all([...Array(ROWS).keys()].map((c) => client.execute(insert, [1, c, `v${c}`], { prepare })));
  await client.execute('INSERT INTO nodejs.t (k, c, v) VALUES (:k, :c, :v)', { k: 9, c: 0, v: 'named' }, { prepare });
  held('prepare');
  let rows = 0, pages = 0, pageState;
  do {
    const result = await client.execute(
      'SELECT c FROM nodejs.t WHERE k = 1', [], { fetchSize: PAGE, pageState, prepare });
    rows += result.rowLength;
    pages += 1;
    pageState = result.pageState;
  } while (pageState);
  assert.deepEqual([rows, pages], [ROWS, Math.ceil(ROWS / PAGE)]);
  held('page');
  await client.batch([0, 1, 2].map((c) => ({ query: insert, params: [2, c, 'b'] })), { prepare, logged: true });
  assert.equal((await client.execute('SELECT c FROM nodejs.t WHERE k = 2')).rowLength, 3);
  held('batch');
  const address = { street: 'S', zip: 9 };
  await client.execute('INSERT INTO nodejs.t (k, c, l, m, s, u) VALUES (?, ?, ?, ?, ?, ?)',
    [4, 0, [3, 4], { b: 2 }, ['z'], address], { prepare });
  const row = (await client.execute('SELECT l, m, s, u FROM nodejs.t WHERE k = 4')).first();
  assert.deepEqual([row.l, row.m, row.s], [[3, 4], { b: 2 }, ['z']]);
  held('collections');
  assert.deepEqual({ ...row.u }, address);
  held('user type');
  const traced = await client.execute('SELECT c FROM nodejs.t WHERE k = 2', [], { traceQuery: true });
  assert.ok(traced.info.traceId);
  held('tracing');
  const table = await client.metadata.getTable('nodejs', 't');
  assert.deepEqual(table.columns.map((column) => column.name).sort(), ['c', 'k', 'l', 'm', 's', 'u', 'v']);
  held('schema');
  await client.shutdown();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
