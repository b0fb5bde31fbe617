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
		Short: "CSI driver, network fencing, DPU and SR-IOV device plugins for Kubernetes nodes",
		Long: `cleat grants workloads volumes and devices when they are ready, and revokes them
when they must not be used any more. One binary has the servers (a CSI driver, a
host that registers plugins as a kubelet does, a storage vendor's plugin on DPUs,
a device plugin for SR-IOV functions, and fences in front of storage servers) and
the client commands.

Try it, as root:
  cleat csi                           serve CSI on unix:///run/cleat/csi/csi.sock
  cleat host                          register plugins on a machine without a kubelet
  cleat dpu                           create devices for volumes in SNAP, on a DPU
  cleat sriov list                    list SR-IOV functions and their resources
  cleat fence serve                   fence failed clients of the storage server on this machine
  cleat volume create data --size 1GiB
  cleat volume attach data /mnt`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddGroup(
		&cobra.Group{ID: "servers", Title: "Servers:"},
		&cobra.Group{ID: "people", Title: "Client commands:"},
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
