package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

func newVolumeCreateCommand(f *driverFlags) *cobra.Command {
	return f.createCommand(&cobra.Command{
		Use:   "create NAME",
		Short: "Create a volume",
		Long: `Creates a volume. The command is idempotent: the same name and parameters return
the same volume.`,
		Example: `  cleat volume create data --size 1GiB
  cleat volume create db --size 20GiB --fs-type xfs --parameter provisioning=thick
  cleat volume create disk --size 4GiB --block`,
	}, func(r *client.CreateRequest, args []string) { r.Name = args[0] })
}

func newVolumeRestoreCommand(f *driverFlags) *cobra.Command {
	return f.createCommand(&cobra.Command{
		Use:   "restore SNAPSHOT NAME",
		Short: "Create a volume from a snapshot",
		Long: `Creates an independent volume with the content of a snapshot; --size can increase
its size.`,
		Example: `  cleat volume restore before-upgrade data-as-it-was
  cleat volume restore before-upgrade larger --size 4GiB`,
	}, func(r *client.CreateRequest, args []string) { r.FromSnapshot, r.Name = args[0], args[1] })
}

func newVolumeCloneCommand(f *driverFlags) *cobra.Command {
	return f.createCommand(&cobra.Command{
		Use:   "clone VOLUME NAME",
		Short: "Create a volume from another volume",
		Long: `Creates an independent volume with the content of another one; --size can increase
its size.`,
		Example: `  cleat volume clone data data-for-tests`,
	}, func(r *client.CreateRequest, args []string) { r.FromVolume, r.Name = args[0], args[1] })
}

// createCommand: take copies the arguments into the request.
func (f *driverFlags) createCommand(c *cobra.Command, take func(*client.CreateRequest, []string)) *cobra.Command {
	var size, limit cli.Size
	var use useFlags
	var parameters, mutable keyValues
	fs := c.Flags()
	fs.Var(&size, "size", "minimum size, for example 1GiB; by default that of the driver or the source")
	fs.Var(&limit, "limit", "maximum size")
	use.add(fs)
	addParameters(c, &parameters, "for example provisioning=thick; can be repeated")
	fs.Var(&mutable, "mutable-parameter", "mutable driver parameter, which volume modify can change later; can be repeated")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if limit > 0 && limit < size {
			return fmt.Errorf("--limit %s is below --size %s", limit, size)
		}
		req := client.CreateRequest{
			Size: volume.SizeRange{Required: int64(size), Limit: int64(limit)}, Capability: use.override(nil, fs), Parameters: parameters, Mutable: mutable,
		}
		take(&req, args)
		return f.runE("creating volume "+req.Name, func(ctx context.Context, d *client.Driver, _ []string) (cli.View, any, error) {
			v, err := d.Create(ctx, req)
			return cli.Textf("volume %s is ready: %s, %s, id %s", v.Name, cli.HumanBytes(v.Size), kindOf(v), v.ID), v, err
		})(cmd, args)
	}
	return c
}

type useFlags struct {
	client.Capability
}

func (f *useFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.Block, "block", false, "use a raw block device instead of a mounted file system")
	fs.StringVar(&f.FSType, "fs-type", "", "file system such as ext4, xfs or btrfs; by default selected by the driver")
	cli.Enumerate(fs, "fs-type", string(mkfs.Ext4), string(mkfs.XFS), string(mkfs.Btrfs))
	fs.StringSliceVar(&f.MountFlags, "mount-flags", nil, "mount options, for example noatime,nosuid")
	fs.StringVar(&f.MountGroup, "mount-group", "", "ID of the group that owns the files")
	fs.StringVar(&f.AccessMode, "access-mode", "", "access mode: "+strings.Join(client.AccessModes(), ", ")+" (default single-node-writer)")
	cli.Enumerate(fs, "access-mode", client.AccessModes()...)
}

// override applies the set flags; nil remains nil without any.
func (f *useFlags) override(c *client.Capability, fs *pflag.FlagSet) *client.Capability {
	var out client.Capability
	if c != nil {
		out = *c
	}
	given := false
	for name, set := range map[string]func(){
		"block":       func() { out.Block = f.Block },
		"fs-type":     func() { out.FSType = f.FSType },
		"mount-flags": func() { out.MountFlags = f.MountFlags },
		"mount-group": func() { out.MountGroup = f.MountGroup },
		"access-mode": func() { out.AccessMode = f.AccessMode },
	} {
		if fs.Changed(name) {
			set()
			given = true
		}
	}
	if !given {
		return c
	}
	if f.Block && !fs.Changed("fs-type") {
		out.FSType = "" // a block volume has no file system
	}
	return &out
}

func newVolumeExpandCommand(f *driverFlags) *cobra.Command {
	var limit cli.Size
	c := &cobra.Command{
		Use:   "expand VOLUME SIZE",
		Short: "Expand a volume, online if the driver supports it",
		Long: `Expands a volume and its file system to at least SIZE. A volume never shrinks; a
volume that is large enough is unchanged.`,
		Example: `  cleat volume expand data 2GiB`,
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := cli.ParseSize(args[1])
			if err != nil {
				return err
			}
			return f.runE("expanding volume "+args[0], func(ctx context.Context, d *client.Driver, _ []string) (cli.View, any, error) {
				v, err := d.Expand(ctx, args[0], volume.SizeRange{Required: int64(size), Limit: int64(limit)})
				return cli.Textf("volume %s has %s", v.Name, cli.HumanBytes(v.Size)), v, err
			})(cmd, args)
		},
	}
	c.Flags().Var(&limit, "limit", "maximum size")
	return c
}

func newVolumeModifyCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "modify VOLUME KEY=VALUE...",
		Short: "Change parameters of a volume in use",
		Long: `Changes parameters of a volume, also in use. The parameters of cleat's driver are
provisioning (thin, thick), trimInterval (a duration, 0 disables it) and
readAheadKiB.`,
		Example: `  cleat volume modify data readAheadKiB=1024 trimInterval=24h`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var mutable keyValues
			for _, arg := range args[1:] {
				if err := mutable.Set(arg); err != nil {
					return err
				}
			}
			return f.runE("modifying volume "+args[0], func(ctx context.Context, d *client.Driver, _ []string) (cli.View, any, error) {
				v, err := d.Modify(ctx, args[0], mutable)
				return cli.Textf("volume %s has %s", v.Name, cli.Cell(v.Mutable)), v, err
			})(cmd, args)
		},
	}
}

func newVolumeDeleteCommand(f *driverFlags) *cobra.Command {
	return f.deleteCommand("volume", &cobra.Command{
		Use:   "delete VOLUME...",
		Short: "Delete volumes with their data",
		Long:  `Deletes volumes with their data. An attached volume is refused: detach it first.`,
		Example: `  cleat volume delete data
  cleat volume delete data --if-exists`,
	}, (*client.Driver).Delete)
}

// deleteCommand continues after errors.
func (f *driverFlags) deleteCommand(kind string, c *cobra.Command, remove func(*client.Driver, context.Context, string) error) *cobra.Command {
	var ifExists bool
	c.Aliases = []string{"rm"}
	c.Flags().BoolVar(&ifExists, "if-exists", false, "succeed if the "+kind+" does not exist")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return f.runE("deleting", func(ctx context.Context, d *client.Driver, _ []string) (cli.View, any, error) {
			deleted, lines := []string{}, cli.Views{}
			var failed []error
			for _, ref := range args {
				switch err := remove(d, ctx, ref); {
				case err == nil:
					deleted = append(deleted, ref)
					lines = append(lines, cli.Textf("%s %s is deleted", kind, ref))
				case !ifExists || !errors.Is(err, errs.NotFound):
					failed = append(failed, err)
				}
			}
			failed = append(failed, f.printResult(cmd, lines, map[string]any{"deleted": deleted}, nil))
			return nil, nil, errors.Join(failed...)
		})(cmd, args)
	}
	return c
}
