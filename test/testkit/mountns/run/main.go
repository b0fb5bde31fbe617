// Command run executes a program in a mount namespace of its own: go test -exec
// runs each test program so, and no other package's tests copy its mounts.
package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/cleatproject/cleat/test/testkit/mountns"
)

func main() {
	err := mountns.Enter()
	if err == nil {
		err = syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "run the tests in a mount namespace of their own:", err)
	os.Exit(1)
}
