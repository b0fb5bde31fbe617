package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/internal/cli"
)

func newPoolCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "pool",
		Short:   "Remove the storage pool of this machine",
		Long:    `Commands for the storage pool of this machine, for when its driver is stopped.`,
		Example: `  sudo cleat pool remove`,
	}
	c.AddCommand(newPoolRemoveCommand())
	onlyHolds(c)
	return c
}

func newPoolRemoveCommand() *cobra.Command {
	var config local.Config
	var options local.RemoveOptions
	c := &cobra.Command{
		Use:   "remove",
		Short: "Delete the storage pool of this machine, unless any of it is in use",
		Long: `Deletes a pool that cleat csi has created, with its image if it has one: unmounts
the image and deletes image, files and directory. The identity that the driver
has recorded in --state-dir is deleted too, so that another pool can be created
there.

It refuses, and changes nothing, while a driver serves the pool, while any volume
is attached, also raw block volumes, deleted files and mounts in containers, while
volumes or snapshots exist, and when the directory holds files of others.

It can be repeated: a removal that was interrupted is completed, and no pool is no
error.`,
		Example: `  sudo cleat pool remove
  sudo cleat pool remove --pool /data/cleat --state-dir /var/lib/cleat/csi
  sudo cleat pool remove --delete-volumes`,
		Args: exactlyNone,
	}
	// A permission to delete data is not left to an environment.
	c.Flags().BoolVar(&options.DeleteVolumes, "delete-volumes", false, "delete volumes and snapshots too, with their data")
	environment := pflag.NewFlagSet("environment", pflag.ContinueOnError)
	environment.StringVar(&config.Pool, "pool", defaultPool, "directory of the pool; its image is this path with .img appended")
	environment.StringVar(&config.StateDir, "state-dir", defaultState, "directory in which the driver recorded the identity of the pool")
	cli.DescribeEnv(environment)
	c.Flags().AddFlagSet(environment)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(environment, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		removed, err := local.Remove(ctx, config, options)
		if err != nil {
			return err
		}
		text := "no pool exists at %s\n"
		if removed {
			text = "pool %s is removed\n"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), text, config.Pool)
		return err
	}
	return c
}
