// Uploads that wait for 100 Continue before they send a byte. Arguments: the URLs.
import java.net.URI;
import java.net.http.*;
import java.time.Duration;

public class Expects {
    public static void main(String[] urls) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        for (String url : urls) {
            HttpRequest q = HttpRequest.newBuilder(URI.create(url)).expectContinue(true).timeout(Duration.ofSeconds(15))
                .POST(HttpRequest.BodyPublishers.ofString("hello")).build();
            HttpResponse<String> r = client.send(q, HttpResponse.BodyHandlers.ofString());
            System.out.println(r.statusCode() + " " + r.body());
        }
        System.exit(0);
    }
}
