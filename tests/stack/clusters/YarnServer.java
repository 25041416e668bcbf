import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;

/** A cluster of YARN on one machine: Hadoop's own resource manager and node manager in one JVM. */
public final class YarnServer {
    private YarnServer() {}

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new YarnConfiguration();
        ResourceManager manager = new ResourceManager();
        manager.init(settings);
        manager.start();
        NodeManager node = new NodeManager();
        node.init(settings);
        node.start();
        Thread.currentThread().join();
    }
}
