package main

import "github.com/spf13/cobra"

func newSriovCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "sriov",
		Short: "Run the SR-IOV device plugin and its config daemon",
		Long: `Manages the SR-IOV functions of a node. The device plugin replaces the SR-IOV
network device plugin and uses its config.json. The config daemon decides when the
plugin offers devices (--controlled-mode): before functions are reconfigured, all
devices are withdrawn, and the plugin has acknowledged that.

Servers, one of each per node:
  plugin      offer the functions that config.json selects to the kubelet
  daemon      configure the functions, or follow the operator's daemon

Client commands that need no server:
  validate    validate a config.json strictly
  list        list the functions of this machine
  explain     explain which resource selects a function, and why others do not

Client commands of the running plugin:
  status      show whether devices are offered, and which daemon controls them`,
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
	setUpGroup(c)
	return c
}
