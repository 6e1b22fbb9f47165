// Package kube drives the built binary as an ingress controller, against a real
// API server and controller manager; scheduler, nodes and Pods are a stand-in
// (kit). All of it runs in a network namespace of the tests' own, where Pods and
// nodes have ordinary addresses: as root, or else in a user namespace as well.
//
// weir has the rights that the manifests in deploy give it, and no others.
//
// WEIR_KUBE_KIT is the folder that kit/build built into. Without one the tests
// are skipped; where CI=true they fail. WEIR_KUBE_BINARY, or else WEIR_E2E_BINARY,
// names a weir to drive instead of building one.
package kube
