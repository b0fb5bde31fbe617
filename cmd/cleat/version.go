package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/server"
)

// release is also reported by GetPluginInfo.
const release = "0.1.0"

// specification is the implemented version of CSI.
const specification = "1.13.0"

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of cleat, CSI and Go",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			commit := build().Commit
			if commit != "" {
				commit = " (" + commit + ")"
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "cleat %s%s\nCSI specification %s\n%s %s/%s\n",
				release, commit, specification, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func build() server.Build {
	b := server.Build{Version: release}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if b.Commit != "" && modified {
		b.Commit += ", modified"
	}
	return b
}
