"""The store on an etcd cluster, 3.4 and newer, with a client of our own (server/decisions/0001-own-etcd-client.md)."""

from kokuban_server.adapters.etcd.layout import SchemaTooNew
from kokuban_server.adapters.etcd.maintenance import new_epoch, snapshot
from kokuban_server.adapters.etcd.settings import EtcdSettings
from kokuban_server.adapters.etcd.store import EtcdStore

__all__ = ["EtcdSettings", "EtcdStore", "SchemaTooNew", "new_epoch", "snapshot"]
