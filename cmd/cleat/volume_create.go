package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume"
)

// createFlags are what can be wished of a new volume.
type createFlags struct {
	size, limit         cli.Size
	use                 useFlags
	parameters, mutable []string
}

func (f *createFlags) add(fs *pflag.FlagSet) {
	fs.Var(&f.size, "size", "bytes that the volume must have at least, as 1GiB; without it the driver or the source decides")
	fs.Var(&f.limit, "limit", "bytes that it may have at most")
	f.use.add(fs)
	fs.StringArrayVarP(&f.parameters, "parameter", "p", nil, "a parameter of the driver, as provisioning=thick; may be repeated")
	fs.StringArrayVar(&f.mutable, "mutable-parameter", nil, "a parameter that volume modify can change later; may be repeated")
}

// request puts the wish together.
func (f *createFlags) request(name string, fs *pflag.FlagSet) (client.CreateRequest, error) {
	req := client.CreateRequest{Name: name, Size: volume.SizeRange{Required: int64(f.size), Limit: int64(f.limit)}}
	if f.limit > 0 && f.limit < f.size {
		return req, fmt.Errorf("--limit %s is below --size %s", f.limit, f.size)
	}
	var err error
	if req.Parameters, err = keyValues(f.parameters); err != nil {
		return req, err
	}
	if req.Mutable, err = keyValues(f.mutable); err != nil {
		return req, err
	}
	req.Capability = f.use.over(nil, fs)
	return req, nil
}

// useFlags are how a volume is to be used.
type useFlags struct {
	block      bool
	fsType     string
	mountFlags []string
	mountGroup string
	accessMode string
}

func (f *useFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.block, "block", false, "a raw block device instead of a mounted file system")
	fs.StringVar(&f.fsType, "fs-type", "", "file system, as ext4, xfs or btrfs; the driver's own choice without it")
	fs.StringSliceVar(&f.mountFlags, "mount-flags", nil, "mount options, as noatime,nosuid")
	fs.StringVar(&f.mountGroup, "mount-group", "", "group id that owns the files")
	fs.StringVar(&f.accessMode, "access-mode", "", "one of "+strings.Join(client.AccessModes(), ", ")+" (default single-node-writer)")
}

// over returns the capability with those parts changed that the flags give;
// nil stays nil when they give none.
func (f *useFlags) over(c *client.Capability, fs *pflag.FlagSet) *client.Capability {
	var out client.Capability
	if c != nil {
		out = *c
	}
	given := false
	for name, set := range map[string]func(){
		"fs-type":     func() { out.FSType = f.fsType },
		"mount-flags": func() { out.MountFlags = f.mountFlags },
		"mount-group": func() { out.MountGroup = f.mountGroup },
		"access-mode": func() { out.AccessMode = f.accessMode },
	} {
		if fs.Changed(name) {
			set()
			given = true
		}
	}
	if fs.Changed("block") {
		given = true
		if out.Block = f.block; f.block && !fs.Changed("fs-type") {
			out.FSType = "" // the file system that it was made with is not looked at
		}
	}
	if !given {
		return c
	}
	return &out
}

func newVolumeCreateCommand(f *driverFlags) *cobra.Command {
	var wish createFlags
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a volume",
		Long: `Makes a volume. The name is yours: create with the same name and wishes gives the
same volume again, never a second one.`,
		Example: `  cleat volume create data --size 1GiB
  cleat volume create db --size 20GiB --fs-type xfs --parameter provisioning=thick
  cleat volume create disk --size 4GiB --block`,
		Args: exactly("a NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := wish.request(args[0], cmd.Flags())
			if err != nil {
				return err
			}
			return f.create(cmd, req)
		},
	}
	wish.add(c.Flags())
	return c
}

func (f *driverFlags) create(cmd *cobra.Command, req client.CreateRequest) error {
	return f.run(cmd, "creating volume "+req.Name, func(ctx context.Context, d *client.Driver) error {
		v, err := d.Create(ctx, req)
		if err != nil {
			return err
		}
		return f.say(cmd, v, "volume %s is ready: %s, %s, id %s", v.Name, cli.HumanBytes(v.Size), kindOf(v.Capability, v.State), v.ID)
	})
}

func newVolumeRestoreCommand(f *driverFlags) *cobra.Command {
	var wish createFlags
	c := &cobra.Command{
		Use:   "restore SNAPSHOT NAME",
		Short: "Make a volume from a snapshot",
		Long: `Makes a new volume with the bytes that a snapshot holds. It is used as the
snapshot's volume was; --size may make it larger. Snapshot and new volume are
independent of each other.`,
		Example: `  cleat volume restore before-upgrade data-as-it-was
  cleat volume restore before-upgrade larger --size 4GiB`,
		Args:              exactly("a SNAPSHOT", "a NAME for the volume"),
		ValidArgsFunction: f.names(snapshotNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := wish.request(args[1], cmd.Flags())
			if err != nil {
				return err
			}
			req.FromSnapshot = args[0]
			return f.create(cmd, req)
		},
	}
	wish.add(c.Flags())
	return c
}

func newVolumeCloneCommand(f *driverFlags) *cobra.Command {
	var wish createFlags
	c := &cobra.Command{
		Use:   "clone VOLUME NAME",
		Short: "Make a volume from another one, as it is now",
		Long: `Makes a new volume with the bytes that another one has at this moment. It is used
as that one is; --size may make it larger. The two are independent of each other.`,
		Example:           `  cleat volume clone data data-for-tests`,
		Args:              exactly("a VOLUME", "a NAME for the clone"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := wish.request(args[1], cmd.Flags())
			if err != nil {
				return err
			}
			req.FromVolume = args[0]
			return f.create(cmd, req)
		},
	}
	wish.add(c.Flags())
	return c
}
