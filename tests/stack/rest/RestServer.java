import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.Files;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.inmemory.InMemoryOutputFile;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Iceberg's own REST catalog for tests, on loopback only: {@code RestServer PORT FOLDER}.
 *
 * <p>The handler is the one that Iceberg tests its clients with; its stock main listens on every
 * address. Each first part of a path is a catalog of its own: {@code http://127.0.0.1:PORT/NAME}
 * keeps its tables in {@code FOLDER/NAME}, so that tests do not see each other. Where that folder
 * has a file {@code filer}, the tables lie in the S3 store whose filer has the address in it.
 */
@SuppressWarnings("serial")
public class RestServer extends HttpServlet {
  private final File folder;
  private final Map<String, HttpServlet> catalogs = new ConcurrentHashMap<>();

  private RestServer(File folder) {
    this.folder = folder;
  }

  public static void main(String[] arguments) throws Exception {
    ServletContextHandler handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    handler.addServlet(new ServletHolder(new RestServer(new File(arguments[1]))), "/*");
    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    connector.setPort(Integer.parseInt(arguments[0]));
    server.addConnector(connector);
    server.setHandler(handler);
    server.start();
    server.join();
  }

  @Override
  protected void service(HttpServletRequest request, HttpServletResponse response)
      throws ServletException, IOException {
    String[] parts = request.getRequestURI().split("/", 3);
    HttpServlet catalog = catalogs.computeIfAbsent(parts[1], this::open);
    catalog.service(
        new HttpServletRequestWrapper(request) {
          @Override
          public String getRequestURI() {
            return "/" + parts[2];
          }

          @Override
          public String getPathInfo() {
            return "/" + parts[2];
          }
        },
        response);
  }

  private HttpServlet open(String name) {
    File place = new File(folder, name);
    place.mkdirs();
    File filer = new File(place, "filer");
    String address = filer.exists() ? read(filer) : "";
    Map<String, String> properties =
        Map.of(
            "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
            "io-impl", (filer.exists() ? FilesInS3.class : LocalFiles.class).getName(),
            "filer", address,
            "uri", "jdbc:sqlite:" + place + "/rest.db?busy_timeout=30000&journal_mode=WAL",
            "jdbc.schema-version", "V1",
            "warehouse",
                filer.exists() ? "s3://warehouse/" + name : "file://" + place + "/warehouse");
    HttpServlet made =
        new RESTCatalogServlet(
            new RESTCatalogAdapter(CatalogUtil.buildIcebergCatalog(name, properties, null)));
    try {
      made.init(getServletConfig());
    } catch (ServletException error) {
      throw new IllegalStateException(error);
    }
    return made;
  }

  private static String read(File file) {
    try {
      return java.nio.file.Files.readString(file.toPath()).strip();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Local files without Hadoop, whose jars are larger than all others together. */
  public static class LocalFiles implements FileIO {
    @Override
    public InputFile newInputFile(String location) {
      return Files.localInput(path(location));
    }

    @Override
    public OutputFile newOutputFile(String location) {
      File file = new File(path(location));
      try {
        // Iceberg's own call fails where two requests make the folder at once.
        java.nio.file.Files.createDirectories(file.getParentFile().toPath());
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
      return Files.localOutput(file);
    }

    @Override
    public void deleteFile(String location) {
      new File(path(location)).delete();
    }

    private static String path(String location) {
      return location.replaceFirst("^file:/*", "/");
    }
  }

  /** Files of an S3 store by its filer, without Amazon's jars: the server's own door, unsigned. */
  public static class FilesInS3 implements FileIO {
    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private String filer;

    @Override
    public void initialize(Map<String, String> properties) {
      filer = properties.get("filer");
    }

    @Override
    public InputFile newInputFile(String location) {
      return new InMemoryInputFile(location, ask("GET", location, null));
    }

    @Override
    public OutputFile newOutputFile(String location) {
      return new InMemoryOutputFile(location) {
        @Override
        public PositionOutputStream createOrOverwrite() {
          PositionOutputStream made = super.createOrOverwrite();
          return new PositionOutputStream() {
            @Override
            public long getPos() throws IOException {
              return made.getPos();
            }

            @Override
            public void write(int one) throws IOException {
              made.write(one);
            }

            @Override
            public void write(byte[] all, int from, int length) throws IOException {
              made.write(all, from, length);
            }

            @Override
            public void close() throws IOException {
              made.close();
              ask("PUT", location, toByteArray());
            }
          };
        }
      };
    }

    @Override
    public void deleteFile(String location) {
      ask("DELETE", location, null);
    }

    private byte[] ask(String method, String location, byte[] body) {
      URI place = URI.create(filer + "/buckets/" + location.replaceFirst("^s3://", ""));
      HttpRequest.BodyPublisher publisher =
          body == null
              ? HttpRequest.BodyPublishers.noBody()
              : HttpRequest.BodyPublishers.ofByteArray(body);
      try {
        HttpResponse<byte[]> answer =
            CLIENT.send(
                HttpRequest.newBuilder(place).method(method, publisher).build(),
                HttpResponse.BodyHandlers.ofByteArray());
        if (answer.statusCode() == 404) {
          throw new NotFoundException("%s is not in the store", location);
        }
        if (answer.statusCode() >= 300) {
          throw new IOException(place + " answered " + answer.statusCode());
        }
        return answer.body();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      } catch (InterruptedException error) {
        throw new IllegalStateException(error);
      }
    }
  }
}
