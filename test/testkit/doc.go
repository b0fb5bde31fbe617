// Package testkit has helpers for the tests of many packages: fail in one line
// (must.go, errors.go, diff.go), wait for an event (wait.go, context.go),
// collect a log (log.go), run a program (process.go) and build one (build.go),
// serve and call gRPC on a UNIX socket (grpc.go), network namespaces
// (netns.go), certificates (certs.go), metrics (metrics.go) and a lack of
// descriptors (descriptors.go). Test file systems are in testkit/scratchfs.
//
// It imports no package of this module but errs, internal/mutualtls and
// test/tree, so all other packages can use it. Product code must not import it.
//
// Tests wait for an event with a deadline (Timeout) that is reached only on
// failure. They never sleep to give something time.
package testkit
