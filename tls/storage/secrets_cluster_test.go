//go:build cluster

package storage

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRealSecretsConform checks with a real API server that it accepts the names, labels,
// annotations and sizes of the Secrets, their preconditions, and lists of metadata.
func TestRealSecretsConform(t *testing.T) {
	kubeconfig := realCluster(t)
	conform(t, func(t *testing.T) kind {
		namespace := newNamespace(t, kubeconfig)
		return secretsKind("secrets://" + namespace + "?prefix=test&kubeconfig=" + kubeconfig)
	})
}

// realCluster returns the kubeconfig in WEIR_TEST_KUBECONFIG. Tests that need it have a
// build tag, and e2e/kube runs them with an API server.
func realCluster(t *testing.T) string {
	kubeconfig := os.Getenv("WEIR_TEST_KUBECONFIG")
	if kubeconfig == "" {
		t.Fatal("WEIR_TEST_KUBECONFIG names no cluster")
	}
	return kubeconfig
}

func newNamespace(t *testing.T, kubeconfig string) string {
	t.Helper()
	client := opened(t, "secrets://default?kubeconfig="+kubeconfig).(*secretStorage).client.Core
	name := fmt.Sprintf("storage-%d", time.Now().UnixNano())
	must(t, client.Post().Resource("namespaces").Body(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}).Do(t.Context()).Error())
	t.Cleanup(func() { client.Delete().Resource("namespaces").Name(name).Do(context.Background()) })
	return name
}
