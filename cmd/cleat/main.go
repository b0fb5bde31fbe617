// Command cleat has the servers of a Kubernetes node (CSI driver, network fencing,
// DPU and SR-IOV device plugins, plugin host) and their client commands.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cleatproject/cleat/dpu/hostfs"
	"github.com/cleatproject/cleat/fence/nft"
)

func main() {
	// The guard of a freeze, the holder of a packet filter and the helper of a
	// mount must be up fast, be small and do nothing else: they go before the
	// command line.
	switch {
	case len(os.Args) == 2 && os.Args[1] == freezeGuardWord:
		exit(runFreezeGuard())
	case len(os.Args) > 1 && os.Args[1] == nft.HolderCommand:
		exit(nft.RunHolder(context.Background(), os.Args[2:]))
	case len(os.Args) == 2 && os.Args[1] == hostfs.HelperCommand:
		exit(runMountHelper())
	}
	root := newRootCommand()
	root.SetArgs(upstreamArgs(commandLine(os.Args)))
	exit(root.ExecuteContext(context.Background()))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cleat:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
