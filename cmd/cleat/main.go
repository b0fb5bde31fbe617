// Command cleat has the servers of a Kubernetes node (CSI driver, network fencing,
// DPU and SR-IOV device plugins, plugin host) and their client commands.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cleatproject/cleat/dpu/hostfs"
	"github.com/cleatproject/cleat/fence/nft"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

func main() {
	kernelcall.Main()
	ctx := context.Background()
	// Helper processes run before the command line is parsed: they start fast
	// and stay small.
	switch {
	case len(os.Args) == 2 && os.Args[1] == freezeGuardCommand:
		exit(freeze.RunGuard(os.Stdin, os.Stdout))
	case len(os.Args) > 1 && os.Args[1] == nft.HolderCommand:
		exit(nft.RunHolder(ctx, os.Args[2:]))
	case len(os.Args) == 2 && os.Args[1] == hostfs.HelperCommand:
		exit(hostfs.RunHelper(ctx, os.Stdin, os.Stdout))
	}
	root := newRootCommand()
	root.SetArgs(upstreamArgs(commandLine(os.Args)))
	exit(root.ExecuteContext(ctx))
}

// freezeGuardCommand thaws file systems if the driver dies.
const freezeGuardCommand = "freeze-guard"

// helper returns a helper's command line. /proc/self/exe is this program, also
// after an upgrade replaced its file.
func helper(command string) []string { return []string{"/proc/self/exe", command} }

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cleat:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
