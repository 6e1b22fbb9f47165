// Requests by Java's HTTP clients: with each TLS version over HTTP/1.1 and HTTP/2, with
// connections that are used again, and with uploads. The argument is the port.
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.security.cert.X509Certificate;
import java.util.*;
import javax.net.ssl.*;

public class Partner {
    static int port;

    static SSLContext trusting(String protocol) throws Exception {
        TrustManager all = new X509ExtendedTrustManager() {
            public void checkClientTrusted(X509Certificate[] c, String a) {}
            public void checkServerTrusted(X509Certificate[] c, String a) {}
            public void checkClientTrusted(X509Certificate[] c, String a, Socket s) {}
            public void checkServerTrusted(X509Certificate[] c, String a, Socket s) {}
            public void checkClientTrusted(X509Certificate[] c, String a, SSLEngine e) {}
            public void checkServerTrusted(X509Certificate[] c, String a, SSLEngine e) {}
            public X509Certificate[] getAcceptedIssuers() { return new X509Certificate[0]; }
        };
        SSLContext context = SSLContext.getInstance(protocol);
        context.init(null, new TrustManager[] {all}, null);
        return context;
    }

    static void want(boolean is, String what) {
        if (!is) throw new AssertionError(what);
    }

    // java.net.http, since Java 11.
    static void modern(String host, String protocol, HttpClient.Version version) throws Exception {
        SSLParameters parameters = new SSLParameters();
        parameters.setProtocols(new String[] {protocol});
        HttpClient client = HttpClient.newBuilder().sslContext(trusting("TLS")).sslParameters(parameters).version(version).build();
        for (int i = 0; i < 20; i++) {
            byte[] body = new byte[i * 10007];
            Arrays.fill(body, (byte) 'x');
            URI uri = URI.create("https://" + host + ":" + port + "/modern/" + i);
            HttpRequest.BodyPublisher upload = i % 2 == 0 ? HttpRequest.BodyPublishers.ofByteArray(body)
                : HttpRequest.BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body));
            HttpResponse<String> r = client.send(HttpRequest.newBuilder(uri).POST(upload).build(), HttpResponse.BodyHandlers.ofString());
            want(r.statusCode() == 200 && r.version() == version && r.body().contains("\"Length\":" + body.length + ","),
                host + " " + protocol + " " + version + ": " + r.statusCode() + " " + r.version() + " " + r.body());
        }
    }

    // HttpsURLConnection, as in Java 6.
    static void classic(String host, String protocol) throws Exception {
        SSLContext context = trusting(protocol);
        for (int i = 0; i < 20; i++) {
            HttpsURLConnection c = (HttpsURLConnection) new URL("https://" + host + ":" + port + "/classic/" + i).openConnection();
            c.setSSLSocketFactory(new Only(context.getSocketFactory(), protocol));
            c.setHostnameVerifier((h, s) -> true);
            byte[] body = new byte[i * 10007];
            if (i % 2 == 0) {
                c.setRequestMethod("POST");
                c.setDoOutput(true);
                if (i % 4 == 0) c.setChunkedStreamingMode(0);
                c.getOutputStream().write(body);
            } else {
                body = new byte[0];
            }
            String text = new String(c.getInputStream().readAllBytes());
            want(c.getResponseCode() == 200 && text.contains("\"Length\":" + body.length + ","), host + " " + protocol + ": " + text);
        }
    }

    // Only makes sockets of one TLS version.
    static class Only extends SSLSocketFactory {
        final SSLSocketFactory of;
        final String protocol;

        Only(SSLSocketFactory of, String protocol) { this.of = of; this.protocol = protocol; }

        Socket only(Socket s) {
            ((SSLSocket) s).setEnabledProtocols(new String[] {protocol});
            return s;
        }

        public String[] getDefaultCipherSuites() { return of.getDefaultCipherSuites(); }
        public String[] getSupportedCipherSuites() { return of.getSupportedCipherSuites(); }
        public Socket createSocket() throws IOException { return only(of.createSocket()); }
        public Socket createSocket(Socket s, String h, int p, boolean a) throws IOException { return only(of.createSocket(s, h, p, a)); }
        public Socket createSocket(String h, int p) throws IOException { return only(of.createSocket(h, p)); }
        public Socket createSocket(String h, int p, InetAddress l, int q) throws IOException { return only(of.createSocket(h, p, l, q)); }
        public Socket createSocket(InetAddress h, int p) throws IOException { return only(of.createSocket(h, p)); }
        public Socket createSocket(InetAddress h, int p, InetAddress l, int q) throws IOException { return only(of.createSocket(h, p, l, q)); }
    }

    public static void main(String[] args) throws Exception {
        port = Integer.parseInt(args[0]);
        for (String protocol : List.of("TLSv1.2", "TLSv1.3")) {
            modern("app.example.org", protocol, HttpClient.Version.HTTP_1_1);
            modern("app.example.org", protocol, HttpClient.Version.HTTP_2);
            classic("app.example.org", protocol);
        }
        for (String protocol : List.of("TLSv1", "TLSv1.1", "TLSv1.2")) classic("legacy.example.org", protocol);
        try {
            classic("app.example.org", "TLSv1");
            throw new AssertionError("TLS 1.0 is accepted where it is not allowed");
        } catch (SSLException e) {
            System.out.println("TLS 1.0 is refused: " + e.getMessage());
        }
        System.out.println("all went well");
        System.exit(0);
    }
}
