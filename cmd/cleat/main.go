// Command cleat gives Kubernetes nodes what their workloads may hold, and
// takes it back the moment they may not. See cleat --help.
package main

import (
	"context"
	"fmt"
	"os"
)

func main() {
	// The guard of a freeze must be up fast and do nothing else: it goes before
	// the command line.
	if len(os.Args) == 2 && os.Args[1] == freezeGuardWord {
		exit(runFreezeGuard())
	}
	exit(newRootCommand().ExecuteContext(context.Background()))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cleat:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
