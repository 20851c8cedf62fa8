"""What commands share: the admin client, options, text of plans and requests, rendering, waiting."""
