// Package conformance only names the conformance suite of the Gateway API, so that go.mod has its version. ../build
// compiles the suite. It is a separate module, because the suite needs many modules that weir does not need.
package conformance

import _ "sigs.k8s.io/gateway-api/conformance"
