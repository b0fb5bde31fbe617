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
// they sent arrives later, images that they had open are not in use, and
// metadata servers do not wait for them.
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
		if err := c.recordInstance(own); err != nil {
			return struct{}{}, err
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

// recordInstance records a client instance of this controller.
func (c *Connection) recordInstance(addr string) error {
	c.mu.Lock()
	c.instances = append(c.instances, addr)
	c.mu.Unlock()
	started := []byte(time.Now().UTC().Format(time.RFC3339))
	return explain(c.pools[0].io.SetOmap(controllersObject, map[string][]byte{addr: started}), "record this controller")
}

// checkUnfenced returns an error if the next controller has fenced this one, or
// the OSDs do not answer.
func (c *Connection) checkUnfenced() error {
	_, err := c.pools[0].io.Stat(controllersObject)
	return explain(ignoreMissing(err), "look up object %s", controllersObject)
}

// leave removes this controller from the list. No call is in flight.
func (c *Connection) leave() {
	if len(c.instances) == 0 {
		return
	}
	if err := c.pools[0].io.RmOmapKeys(controllersObject, c.instances); err != nil {
		c.logger.Warn("the next controller will fence this one, which has ended", "err", plain(err))
	}
}
