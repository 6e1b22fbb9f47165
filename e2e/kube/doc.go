// Package kube tests the built binary as an ingress controller, with a real API server and a real controller
// manager. The package kit replaces the scheduler, the nodes and the Pods. All processes run in a separate
// network namespace, where Pods and nodes have ordinary addresses. Without root, they also run in a user
// namespace.
//
// weir has only the rights that the manifests in deploy give it.
//
// WEIR_KUBE_KIT is the folder that kit/build created. Without it, the tests are skipped; if CI=true, they
// fail. WEIR_KUBE_BINARY or WEIR_E2E_BINARY names a binary to test. Without them, the tests build the binary.
package kube
