// The Java driver.
import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.cql.*;
import com.datastax.oss.driver.api.core.data.UdtValue;
import com.datastax.oss.driver.api.core.type.UserDefinedType;
import java.net.InetSocketAddress;
import java.util.*;

public class Check {
  private static final int ROWS = 500;

  private static void held(String name) {
    System.out.println("check " + name);
  }

  private static void equal(Object expected, Object found) {
    if (!expected.equals(found)) throw new AssertionError(found + " instead of " + expected);
  }

  public static void main(String[] addresses) {
    System.out.println("version java-driver-core " + com.datastax.oss.driver.api.core.session.Session.OSS_DRIVER_COORDINATES.getVersion());
    try (CqlSession session = CqlSession.builder()
        .addContactPoint(new InetSocketAddress(addresses[0], 9042)).withLocalDatacenter("dc1").build()) {
      equal(3, session.getMetadata().getNodes().size());
      session.execute("CREATE KEYSPACE java WITH replication = "
          + "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}");
      session.execute("CREATE TYPE java.address (street text, zip int)");
      session.execute("CREATE TABLE java.t (k int, c int, v text, l list<int>, m map<text, int>, s set<text>, "
          + "u frozen<address>, PRIMARY KEY (k, c))");
      held("connect");
      PreparedStatement insert = session.prepare("INSERT INTO java.t (k, c, v) VALUES (?, ?, ?)");
      for (int c = 0; c < ROWS; c++) session.execute(insert.bind(1, c, "v" + c));
      held("prepare");
      int rows = 0;
      for (Row row : session.execute(SimpleStatement.newInstance("SELECT c FROM java.t WHERE k = 1").setPageSize(30)))
        equal(rows++, row.getInt(0));
      equal(ROWS, rows);
      held("page");
      BatchStatementBuilder batch = BatchStatement.builder(BatchType.LOGGED);
      for (int c = 0; c < 3; c++) batch.addStatement(insert.bind(2, c, "b"));
      session.execute(batch.build());
      held("batch");
      UserDefinedType type = session.refreshSchema().getKeyspace("java").get().getUserDefinedType("address").get();
      UdtValue address = type.newValue("S", 9);
      session.execute(session.prepare("INSERT INTO java.t (k, c, l, m, s, u) VALUES (?, ?, ?, ?, ?, ?)")
          .bind(4, 0, List.of(3, 4), Map.of("b", 2), Set.of("z"), address));
      Row row = session.execute("SELECT l, m, s, u FROM java.t WHERE k = 4").one();
      equal(List.of(3, 4), row.getList(0, Integer.class));
      equal(Map.of("b", 2), row.getMap(1, String.class, Integer.class));
      equal(Set.of("z"), row.getSet(2, String.class));
      held("collections");
      equal(address.getFormattedContents(), row.getUdtValue(3).getFormattedContents());
      held("user type");
      session.execute("INSERT INTO java.t (k, c, v) VALUES (:k, :c, :v)", Map.of("k", 9, "c", 0, "v", "named"));
      held("named values");
      ResultSet traced = session.execute(SimpleStatement.newInstance("SELECT c FROM java.t WHERE k = 2").setTracing(true));
      if (traced.getExecutionInfo().getQueryTrace().getEvents().isEmpty()) throw new AssertionError("no events");
      held("tracing");
      equal(3, session.execute(SimpleStatement.newInstance("SELECT c FROM t WHERE k = 2").setKeyspace("java")).all().size());
      held("keyspace of a request");
      PreparedStatement all = session.prepare("SELECT * FROM java.t WHERE k = 2");
      session.execute("ALTER TABLE java.t ADD more int");
      equal(8, session.execute(all.bind()).one().getColumnDefinitions().size());
      held("changed metadata");
    }
  }
}
