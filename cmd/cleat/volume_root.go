package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/errs"
)

func newVolumeCommand() *cobra.Command {
	var f driverFlags
	c := &cobra.Command{
		Use:   "volume",
		Short: "Make, use and delete volumes of any CSI driver",
		Long: `Makes, uses and deletes volumes through the socket of a CSI driver: cleat's own
(start it with cleat csi) or anybody else's (--endpoint, or --driver with its name
where a host of plugins knows it, see cleat host). It does what a cluster does:
asks the driver what it can, walks the steps that this driver wants, and remembers
in --state-dir what must be known to go back.

A volume is named by the name it was created with, or by the driver's id. Every
command may be repeated: what is done already is left as it is, and what was cut
off is continued.`,
		Example: `  cleat volume create data --size 1GiB
  cleat volume attach data /mnt
  cleat volume snapshot data --name before-upgrade
  cleat volume expand data 2GiB
  cleat volume detach data
  cleat volume restore before-upgrade data-as-it-was
  cleat volume delete data
  cleat volume list --driver csi.cleat.dev      # where cleat host has registered it
  cleat volume list --endpoint unix:///var/lib/kubelet/plugins/hostpath.csi.k8s.io/csi.sock`,
	}
	f.add(c)
	c.AddCommand(
		newVolumeCreateCommand(&f), newVolumeRestoreCommand(&f), newVolumeCloneCommand(&f),
		newVolumeListCommand(&f), newVolumeShowCommand(&f),
		newVolumeAttachCommand(&f), newVolumeDetachCommand(&f),
		newVolumeExpandCommand(&f), newVolumeModifyCommand(&f), newVolumeTrimCommand(&f),
		newVolumeStatsCommand(&f), newVolumeHealthCommand(&f),
		newVolumeSnapshotCommand(&f, "snapshot"), newVolumeChangedBlocksCommand(&f),
		newVolumeDeleteCommand(&f), newVolumeDriverCommand(&f),
	)
	onlyHolds(c)
	return c
}

// onlyHolds makes a command that does nothing itself refuse a word that is none
// of those below it; cobra would print the help and call that a success.
func onlyHolds(c *cobra.Command) {
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var known []string
		for _, sub := range cmd.Commands() {
			known = append(append(known, sub.Name()), sub.Aliases...)
		}
		hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
		if near := errs.Nearest(args[0], known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return fmt.Errorf("%s has no command %q; %s", cmd.CommandPath(), args[0], hint)
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}
