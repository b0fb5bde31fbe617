//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/engine/ceph/blocklist"
)

// controllersObject has the client instances of controllers as keys of its
// omap, and the times of their starts.
const controllersObject = "cleat-controllers"

// takeOver puts the client instances of controllers that did not end by
// themselves on the cluster's blocklist, before anything is read: nothing that
// they sent arrives later, and images that they had open are not in use.
func (c *Connection) takeOver(ctx context.Context) error {
	_, err := call(ctx, c, "take over from earlier controllers", func() (struct{}, error) {
		own, err := c.rados.GetAddrs()
		if err != nil {
			return struct{}{}, explain(err, "read the address of this client")
		}
		io := c.pools[0].io
		earlier, err := io.GetAllOmapValues(controllersObject, "", "", pageSize)
		if ignoreMissing(err) != nil {
			return struct{}{}, explain(err, "list earlier controllers")
		}
		err = io.SetOmap(controllersObject, map[string][]byte{own: []byte(time.Now().UTC().Format(time.RFC3339))})
		if err != nil {
			return struct{}{}, explain(err, "record this controller")
		}
		if len(earlier) == 0 {
			return struct{}{}, nil
		}
		var failed []error // of one does not keep the others
		for addr := range earlier {
			failed = append(failed, c.blocklistController(addr))
		}
		failed = append(failed, explain(c.rados.WaitForLatestOSDMap(), "wait for the latest OSD map"))
		return struct{}{}, errors.Join(failed...)
	})
	return err
}

func (c *Connection) blocklistController(addr string) error {
	command, err := blocklist.BlockInstance(addr)
	if err != nil {
		return fmt.Errorf("object %s: %w", controllersObject, err)
	}
	_, status, err := c.rados.MonCommand(command)
	if err != nil {
		return commandError(err, status, "put the earlier controller %s on the blocklist", addr)
	}
	return explain(c.pools[0].io.RmOmapKeys(controllersObject, []string{addr}), "forget the earlier controller %s", addr)
}

// leave removes this controller from the list.
func (c *Connection) leave() {
	own, err := c.rados.GetAddrs()
	if err == nil {
		err = c.pools[0].io.RmOmapKeys(controllersObject, []string{own})
	}
	if err != nil {
		c.logger.Warn("the next controller will fence this one, which has ended", "err", plain(err))
	}
}
