package main

import (
	"context"
	"os"

	"github.com/cleatproject/cleat/dpu/hostfs"
)

// runMountHelper mounts or unmounts one network file system for cleat dpu, in a
// process that can be killed while a server does not answer.
func runMountHelper() error {
	return hostfs.RunHelper(context.Background(), os.Stdin, os.Stdout)
}

// mountHelper starts this very program as that helper, also after its file was
// replaced by an upgrade.
func mountHelper() []string { return []string{"/proc/self/exe", hostfs.HelperCommand} }
