package lint

import (
	"os"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/event"
)

// For annotations that restrict access, the rating matches how weir treats an Ingress
// that has one.
func TestRefused(t *testing.T) {
	file, err := file.Parse("weir.yaml", []byte("listeners: {web: {address: ':80', protocol: http}}\nkubernetes: {class: weir}\n"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	converter, refused := kube.Converter{File: file}, 0
	for file, prefix := range map[string]string{"ingress-nginx": annotation.Nginx, "traefik": annotation.Traefik} {
		text, err := os.ReadFile("../annotation/testdata/" + file + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
			for _, value := range []string{"", "true", "false", "off", "10.0.0.0/8", "0.0.0.0/0, ::/0"} {
				class := "weir"
				i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{prefix + name: value}}}
				i.Spec.IngressClassName = &class
				finding, does, tells := Object(i)[0], false, false
				for _, e := range converter.Convert(&kube.Objects{Ingresses: []*networkingv1.Ingress{i}}).Events {
					named := strings.Contains(e.Message, prefix+name)
					does = does || e.Reason == event.ReasonAccess && named
					tells = tells || named
				}
				if says := strings.Contains(finding.Why, "answers 503 for an Ingress"); does != says || does != finding.Refused {
					t.Errorf("%s: %q is refused: %t, the finding says %t, and its reason %t", name, value, does, finding.Refused, says)
				}
				if want := finding.Rating == annotation.No && name != "backend-protocol"; tells != want { // weir reports backend-protocol with the Service
					t.Errorf("%s: %q is %s, and there is an event: %t", name, value, finding.Rating, tells)
				}
				if does {
					refused++
				}
			}
		}
	}
	if refused < 80 {
		t.Errorf("only %d were refused", refused)
	}
}
