package main

import (
	"github.com/spf13/cobra"
)

func newDeviceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "device",
		Short: "Ask a DPU's storage plugin for devices, as DPF's node driver does",
		Long: `Asks the storage plugin of a DPU for the devices of volumes, as the SNAP node
driver of DPF does: that of cleat dpu, or any vendor's (--socket, or --plugin-name
for the place where the node driver looks).`,
	}
	c.AddCommand()
	onlyHolds(c)
	return c
}
