package server

import (
	"runtime/debug"

	"github.com/spf13/cobra"
)

const settingsHelp = `

Flags that list an environment variable can also be set by that variable, and in a
YAML file (--config) with the flag names as keys. Flags override the environment,
and the environment overrides the file.`

// Command makes a program, which has declared its flags, that of a command.
func (s *Server) Command(c *cobra.Command, p Program, b Build) *cobra.Command {
	c.Long += settingsHelp
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return s.Execute(cmd.Context(), p, b, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return c
}

// ReadBuild adds the commit of this binary to a version.
func ReadBuild(version string) Build {
	b := Build{Version: version}
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
