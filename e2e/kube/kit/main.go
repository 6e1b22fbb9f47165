// Kit is a Kubernetes control plane in one binary: etcd, kube-apiserver,
// kube-controller-manager and kubectl as they are released, and a stand-in for
// scheduler, nodes and Pods. Which of them it is, its own name says (links to
// it), or the first argument.
//
// It is a module of its own, for weir's not to depend on all of Kubernetes.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // what client-go counts
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"github.com/weirproxy/weir/e2e/kube/kit/standin"
)

// parts are what the binary can be, and how it ends.
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
