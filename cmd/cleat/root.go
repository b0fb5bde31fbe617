package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
)

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cleat",
		Short: "CSI driver, network fencing, DPU and SR-IOV device plugins for Kubernetes nodes",
		Long: `CSI driver, network fencing, DPU and SR-IOV device plugins for Kubernetes nodes, and
a plugin host for machines without a kubelet. The binary has the servers and the
client commands that use them.

Getting started, as root:
  cleat csi                           run the CSI driver on unix:///run/cleat/csi/csi.sock
  cleat host                          register plugins on a machine without a kubelet
  cleat dpu                           run the storage vendor plugin of a DPU
  cleat sriov list                    list SR-IOV functions and their resources
  cleat fence serve                   run the network fencing service of a storage server
  cleat takeover                      fence lost nodes and let their pods start elsewhere
  cleat volume create data --size 1GiB
  cleat volume attach data /mnt
  cleat status                        show every server of this machine`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       release,
	}
	root.SetVersionTemplate(versionLine() + "\n")
	root.AddGroup(
		&cobra.Group{ID: "servers", Title: "Servers:"},
		&cobra.Group{ID: "clients", Title: "Client commands:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("servers", newCSICommand(), newDPUCommand(), newSriovCommand(), newHostCommand(), newTakeoverCommand())
	add("clients", newStatusCommand(), newVolumeCommand(), newSnapshotCommand(), newGroupCommand(), newFenceCommand(), newPoolCommand(), newDeviceCommand(), newPluginsCommand(), newKubectlCommand())
	root.AddCommand(newVersionCommand())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" { // cobra would print the help of an unknown shell, and succeed
			setUpGroup(c)
		}
	}
	cli.CompleteValues(root)
	return root
}

func serving(c *cobra.Command, p interface {
	server.Program
	addFlags(fs *pflag.FlagSet)
	Command(c *cobra.Command, p server.Program, b server.Build) *cobra.Command
}) *cobra.Command {
	p.addFlags(c.Flags())
	return p.Command(c, p, build())
}
