// Kit is a Kubernetes control plane in one binary. It contains etcd, kube-apiserver, kube-controller-manager
// and kubectl as they are released, and a stand-in for the scheduler, the nodes and the Pods. The name of the
// binary, or of a link to it, selects the part; otherwise the first argument does.
//
// Kit is a separate module, so that weir does not depend on all of Kubernetes.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers the metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"github.com/weirproxy/weir/e2e/kube/kit/standin"
)

// parts are the parts by name. Each function runs its part and returns the exit status.
var parts = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(manager.NewControllerManagerCommand()) },
	"kubectl": func() int {
		if cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()) != nil {
			return 1
		}
		return 0
	},
	"standin": func() int {
		err := standin.Run(os.Args[1:])
		fmt.Fprintln(os.Stderr, "standin:", err)
		return 1
	},
}

func main() {
	part := parts[filepath.Base(os.Args[0])]
	if part == nil && len(os.Args) > 1 {
		part, os.Args = parts[os.Args[1]], os.Args[1:]
	}
	if part == nil {
		fmt.Fprintln(os.Stderr, "usage: kit etcd|kube-apiserver|kube-controller-manager|kubectl|standin ...")
		os.Exit(2)
	}
	os.Exit(part())
}
