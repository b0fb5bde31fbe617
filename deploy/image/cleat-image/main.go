// Command cleat-image builds cleat's container images from Debian packages and a
// built program.
//
//	cleat-image                              bin/cleat-image.tar from bin/cleat
//	cleat-image -variant ceph                bin/cleat-ceph-image.tar from bin/cleat-ceph
//	cleat-image -command "sriov plugin" -output bin/plugin.tar -reference registry.example.com/sriov-plugin:0.1.0
//	cleat-image -directory DIR base          one layer's files, for deploy/image/Dockerfile: base or own
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/cleatproject/cleat/deploy/image"
	"github.com/cleatproject/cleat/deploy/image/oci"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cleat-image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := image.Options{Log: os.Stderr}
	flag.StringVar((*string)(&o.Variant), "variant", "", "ceph: the image of the controller of Ceph volumes")
	flag.StringVar(&o.Binary, "binary", "", "the program (default bin/cleat, of variant ceph bin/cleat-ceph)")
	flag.StringVar(&o.Output, "output", "", "the file to write (default bin/cleat-image.tar, of variant ceph bin/cleat-ceph-image.tar)")
	flag.StringVar(&o.Reference, "reference", "", "name and tag (default cleat.local/cleat:VERSION, of variant ceph cleat.local/cleat-ceph:VERSION)")
	flag.StringVar(&o.Cache, "cache", "", "where packages are kept (default $CLEAT_CACHE/image or ~/.cache/cleat/image)")
	command := flag.String("command", "", "what of cleat the image runs with its arguments, as \"sriov plugin\"")
	flag.Func("env", "a variable of the image, KEY=VALUE; can be repeated", func(v string) error {
		o.Env = append(o.Env, v)
		return nil
	})
	directory := flag.String("directory", "", "write the files of one layer, base or own, below this directory")
	flag.Parse()
	o.Command = strings.Fields(*command)
	name := "bin/cleat"
	if o.Variant != image.Default {
		name += "-" + string(o.Variant)
	}
	o.Binary, o.Output = cmp.Or(o.Binary, name), cmp.Or(o.Output, name+"-image.tar")
	if *directory == "" {
		if flag.NArg() > 0 {
			return fmt.Errorf("unexpected argument %q, see -help", flag.Arg(0))
		}
		return image.Build(ctx, o)
	}
	var files []oci.File
	var err error
	switch layer := flag.Arg(0); layer {
	case "base":
		files, _, err = image.Base(ctx, o.Variant, runtime.GOARCH, o.Cache, o.Log)
	case "own":
		files, err = image.Own(ctx, o.Variant, o.Binary, "")
	default:
		err = fmt.Errorf("unknown layer %q, use base or own", layer)
	}
	if err != nil {
		return err
	}
	return oci.Extract(*directory, oci.FileLayer(files...))
}
