package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
)

// release is also reported by GetPluginInfo.
const release = "0.1.0"

// specification is the implemented version of CSI.
const specification = "1.13.0"

// versions is printed by the version command.
type versions struct {
	Cleat    string `json:"cleat"`
	Commit   string `json:"commit,omitempty"`
	CSI      string `json:"csi"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand() *cobra.Command {
	f := cli.FormatTable
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of cleat, CSI and Go",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{release, build().Commit, specification, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			text := cli.Textf("%s\nCSI specification %s\n%s %s", versionLine(), v.CSI, v.Go, v.Platform)
			return cli.Print(cmd.OutOrStdout(), f, text, v)
		},
	}
	c.Flags().VarP(&f, "output", "o", outputUsage)
	return c
}

// versionLine is also the output of --version.
func versionLine() string {
	if commit := build().Commit; commit != "" {
		return "cleat " + release + " (" + commit + ")"
	}
	return "cleat " + release
}

func build() server.Build { return server.ReadBuild(release) }
