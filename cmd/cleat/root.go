package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/server"
)

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cleat",
		Short: "Make volumes and devices fast to workloads, and let go in time",
		Long: `cleat gives Kubernetes nodes what their workloads may hold, and takes it back
the moment they may not. One binary is the servers (a CSI driver, a host that
registers plugins as a kubelet does, a storage vendor's plugin on DPUs, the device
plugin of SR-IOV functions, and fences in front of storage servers) and the commands of a person who wants to use or try them.

Try it, as root:
  cleat csi                           serve CSI on unix:///run/cleat/csi/csi.sock
  cleat host                          register plugins on a machine without a kubelet
  cleat dpu                           make devices of volumes in SNAP, on a DPU
  cleat sriov list                    see which SR-IOV functions there are, and who takes them
  cleat fence serve                   cut failed clients off from the storage server here
  cleat volume create data --size 1GiB
  cleat volume attach data /mnt`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddGroup(
		&cobra.Group{ID: "servers", Title: "Servers:"},
		&cobra.Group{ID: "people", Title: "For people:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("servers", newCSICommand(), newDPUCommand(), newSriovCommand(), newHostCommand())
	add("people", newVolumeCommand(), newSnapshotCommand(), newGroupCommand(), newFenceCommand(), newPoolCommand(), newDeviceCommand(), newPluginsCommand())
	root.AddCommand(newVersionCommand())
	return root
}

const settingsHelp = `

A flag with a variable in its description can also be given in the environment,
and in a YAML file (--config) whose keys are the names of the flags. A flag wins
over the environment, and the environment over the file.`

// serving makes c the command of a server.
func serving(c *cobra.Command, p interface {
	server.Program
	addFlags(fs *pflag.FlagSet)
	Execute(ctx context.Context, p server.Program, b server.Build, out, logs io.Writer) error
}) *cobra.Command {
	c.Long += settingsHelp
	p.addFlags(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.Execute(cmd.Context(), p, build(), cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return c
}
