package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/volume"
)

func newVolumeExpandCommand(f *driverFlags) *cobra.Command {
	var limit cli.Size
	c := &cobra.Command{
		Use:   "expand VOLUME SIZE",
		Short: "Make a volume larger, while it is in use where the driver can",
		Long: `Makes a volume larger, with its file system. SIZE is what it has afterwards at
least. A volume never shrinks; one that is large enough stays as it is.`,
		Example:           `  cleat volume expand data 2GiB`,
		Args:              exactly("a VOLUME", "a SIZE"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := cli.ParseSize(args[1])
			if err != nil {
				return err
			}
			return f.run(cmd, "expanding volume "+args[0], func(ctx context.Context, d *client.Driver) error {
				v, err := d.Expand(ctx, args[0], volume.SizeRange{Required: int64(size), Limit: int64(limit)})
				if err != nil {
					return err
				}
				return f.say(cmd, v, "volume %s has %s", v.Name, cli.HumanBytes(v.Size))
			})
		},
	}
	c.Flags().Var(&limit, "limit", "bytes that it may have at most")
	return c
}

func newVolumeModifyCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "modify VOLUME KEY=VALUE...",
		Short: "Change parameters of a volume in use",
		Long: `Changes parameters of a volume while it is used. Those that are not named stay.
Which ones there are is the driver's matter; cleat's own has provisioning (thin,
thick), trimInterval (a duration, 0 is off) and readAheadKiB.`,
		Example:           `  cleat volume modify data readAheadKiB=1024 trimInterval=24h`,
		Args:              atLeast("a VOLUME", "KEY=VALUE"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			mutable, err := keyValues(args[1:])
			if err != nil {
				return err
			}
			return f.run(cmd, "modifying volume "+args[0], func(ctx context.Context, d *client.Driver) error {
				v, err := d.Modify(ctx, args[0], mutable)
				if err != nil {
					return err
				}
				return f.say(cmd, v, "volume %s has %s", v.Name, pairs(v.Mutable))
			})
		},
	}
}

func newVolumeTrimCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "trim VOLUME",
		Short: "Give the room of deleted files back to the storage",
		Long: `Tells the storage which blocks of an attached, mounted volume are free, so that a
thin volume takes no more room than its files.`,
		Example:           `  cleat volume trim data`,
		Args:              exactly("a VOLUME"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "trimming volume "+args[0], func(ctx context.Context, d *client.Driver) error {
				v, err := d.Show(ctx, args[0])
				if err != nil {
					return err
				}
				path, err := trimPath(v)
				if err != nil {
					return err
				}
				bytes, err := fstrim.Trim(ctx, path)
				if err != nil {
					return err
				}
				return f.say(cmd, map[string]any{"name": v.Name, "path": path, "trimmedBytes": bytes}, "volume %s: %s of free room trimmed", v.Name, cli.HumanBytes(bytes))
			})
		},
	}
}

// trimPath is where a file system can be told to trim: mounted, and writable.
func trimPath(v client.Volume) (string, error) {
	if v.Capability.Block {
		return "", fmt.Errorf("volume %s is a block device: what is free in it only its user knows (blkdiscard, or fstrim on a file system of its own)", v.Name)
	}
	for _, t := range v.Targets {
		if t.Published && !t.ReadOnly {
			return t.Path, nil
		}
	}
	return "", fmt.Errorf("volume %s is not attached for writing; attach it first", v.Name)
}

func newVolumeDeleteCommand(f *driverFlags) *cobra.Command {
	var ifExists bool
	c := &cobra.Command{
		Use:     "delete VOLUME...",
		Aliases: []string{"rm"},
		Short:   "Delete volumes and all that is in them",
		Long: `Deletes volumes with their data. A volume that is attached is refused: detach it
first. Snapshots and clones of it stay, where the driver keeps them independent.`,
		Example: `  cleat volume delete data
  cleat volume delete data --if-exists`,
		Args:              atLeast("a VOLUME"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "deleting", func(ctx context.Context, d *client.Driver) error {
				return f.each(cmd, "volume", args, ifExists, func(ref string) error { return d.Delete(ctx, ref) })
			})
		},
	}
	c.Flags().BoolVar(&ifExists, "if-exists", false, "a volume that is not there is no error")
	return c
}

// each deletes objects one by one. One that fails does not keep the others.
func (f *driverFlags) each(cmd *cobra.Command, what string, refs []string, ifExists bool, remove func(ref string) error) error {
	deleted := []string{}
	var failed []error
	for _, ref := range refs {
		err := remove(ref)
		if ifExists && errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		deleted = append(deleted, ref)
		if f.output == cli.FormatTable {
			failed = append(failed, f.say(cmd, nil, "%s %s is deleted", what, ref))
		}
	}
	if f.output != cli.FormatTable {
		failed = append(failed, f.print(cmd, cli.Table{}, map[string]any{"deleted": deleted}))
	}
	return errors.Join(failed...)
}
