// Package testkit has what tests of many packages need: to fail in one line
// (must.go, errors.go, diff.go), to wait for an event (wait.go, context.go), to collect a
// log (log.go), to run a program (process.go) and build one (build.go), to serve
// and call gRPC on a UNIX socket (grpc.go), network namespaces (netns.go),
// certificates (certs.go) and metrics (metrics.go). File systems for tests are in
// testkit/scratchfs.
//
// It imports no package of this module but errs, internal/mutualtls and
// test/tree, so that all other packages can use it in their own tests. Product
// code must not import it.
//
// A test waits for an event, with a deadline (Timeout) that it reaches only when
// it fails. It never sleeps to give something time.
package testkit
