package main

import "github.com/spf13/cobra"

func newSriovCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "sriov",
		Short: "Offer SR-IOV functions to pods, and only those that are configured",
		Long: `The SR-IOV side of a node. The device plugin takes the place of the SR-IOV network
device plugin, with its config.json as it is; the daemon decides when the plugin
may offer anything (--controlled-mode), and takes everything back, acknowledged,
before a function is configured anew.

Servers, one of each on a node:
  plugin      offer the functions that config.json selects to the kubelet
  daemon      answer for the functions: configure them, or follow who does

For people, without a server:
  validate    check a config.json strictly
  list        list the functions of this machine
  explain     tell which resource takes a function, and why the others do not

For people, of the running plugin:
  status      ask whether it offers its devices, and who answers for them`,
		Example: `  cleat sriov validate config.json
  cleat sriov list
  cleat sriov explain 0000:3b:02.1
  sudo cleat sriov status`,
	}
	c.AddCommand(
		newSriovPluginCommand(), newSriovDaemonCommand(nil),
		newSriovValidateCommand(), newSriovListCommand(nil), newSriovExplainCommand(nil),
		newSriovStatusCommand(),
	)
	onlyHolds(c)
	return c
}
