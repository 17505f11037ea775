"""Block to loop for workgroups of many waves: tensors over lanes, roles as branches, channels as barriers."""
