package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
)

func newGroupCommand() *cobra.Command {
	var f driverFlags
	c := &cobra.Command{
		Use:   "group",
		Short: "Cut, list and delete snapshots of several volumes at one moment",
		Long: `Cuts snapshots of several volumes at one moment, so that they fit together: a
database and its log, for example. The members live and die with their group;
make volumes from them with cleat volume restore, by their ids.`,
		Example: `  cleat group create nightly database log
  cleat group show nightly
  cleat group delete nightly`,
	}
	f.add(c)
	c.AddCommand(newGroupCreateCommand(&f), newGroupListCommand(&f), newGroupShowCommand(&f), newGroupDeleteCommand(&f))
	onlyHolds(c)
	return c
}

func newGroupCreateCommand(f *driverFlags) *cobra.Command {
	var parameters []string
	c := &cobra.Command{
		Use:   "create NAME VOLUME...",
		Short: "Cut several volumes at one moment",
		Long: `Cuts snapshots of all these volumes at one moment and waits until they are ready.
The same name and volumes give the same group again.

With cleat's own driver an attached block volume cannot be held still; accept
that its snapshot is consistent only by itself with --parameter
consistency=member.`,
		Example:           `  cleat group create nightly database log`,
		Args:              atLeast("a NAME", "at least one VOLUME"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := keyValues(parameters)
			if err != nil {
				return err
			}
			return f.run(cmd, "cutting group "+args[0], func(ctx context.Context, d *client.Driver) error {
				g, err := d.CreateGroup(ctx, args[0], args[1:], options)
				if err != nil {
					return err
				}
				return f.say(cmd, g, "group %s is ready: %s, id %s", g.Name, count(len(g.Snapshots), "snapshot"), g.ID)
			})
		},
	}
	c.Flags().StringArrayVarP(&parameters, "parameter", "p", nil, "a parameter of the driver, key=value; may be repeated")
	return c
}

func newGroupListCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the groups that were cut from here",
		Long:    `Lists the groups that these commands cut. CSI has no way to ask a driver for others.`,
		Example: `  cleat group list`,
		Args:    exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, "listing groups", func(ctx context.Context, d *client.Driver) error {
				all, err := d.Groups(ctx)
				if err != nil {
					return err
				}
				if all == nil {
					all = []client.Group{}
				}
				return f.print(cmd, groupTable(all), all)
			})
		},
	}
}

func newGroupShowCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:               "show GROUP",
		Short:             "Show the snapshots of a group",
		Example:           `  cleat group show nightly`,
		Args:              exactly("a GROUP"),
		ValidArgsFunction: f.names(groupNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "looking at group "+args[0], func(ctx context.Context, d *client.Driver) error {
				g, err := d.ShowGroup(ctx, args[0])
				if err != nil {
					return err
				}
				return f.print(cmd, memberTable(g), g)
			})
		},
	}
}

func newGroupDeleteCommand(f *driverFlags) *cobra.Command {
	var ifExists bool
	c := &cobra.Command{
		Use:               "delete GROUP...",
		Aliases:           []string{"rm"},
		Short:             "Delete groups with their snapshots",
		Example:           `  cleat group delete nightly`,
		Args:              atLeast("a GROUP"),
		ValidArgsFunction: f.names(groupNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "deleting", func(ctx context.Context, d *client.Driver) error {
				return f.each(cmd, "group", args, ifExists, func(ref string) error { return d.DeleteGroup(ctx, ref) })
			})
		},
	}
	c.Flags().BoolVar(&ifExists, "if-exists", false, "a group that is not there is no error")
	return c
}
